"""Streams of server-sent events that survive lost connections.

A command belongs to its sandbox, a run to its daemon; this only follows them. A lost connection is
reopened after the last event that arrived, so nothing is shown twice and nothing runs twice.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import aiohttp

from sandkasten.client.http.error_responses import body_error
from sandkasten.client.http.event_parser import Event, Parser
from sandkasten.client.http.json_values import record
from sandkasten.client.http.reconnect import Patience
from sandkasten.client.http.session_json import chunk_of, exec_result_of
from sandkasten.errors import BackendUnavailable, ProtocolViolation, SandkastenError
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sandkasten.client.http.connection import Connection, HttpRequest

# A daemon sends something every 15 s, if only a sign that it lives.
SILENCE_S: Final = 60.0


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    """Iterate over the events of one answer. TimeoutError if it is silent for too long."""
    parser = Parser()
    while True:
        async with asyncio.timeout(SILENCE_S):
            data = await answer.content.readany()
        if not data:
            return
        for event in parser.feed(data):
            yield event


def parsed(event: Event) -> dict[str, Any]:
    try:
        return record(json.loads(event.data), event.name)
    except ValueError:
        raise ProtocolViolation("an event of the daemon is not JSON") from None


class _Numbered(Protocol):
    @property
    def seq(self) -> int: ...


P = TypeVar("P", bound=_Numbered)
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Followed(Generic[P, E]):
    """What is followed: the event of its items, how items and the end are decoded, and messages."""

    piece: str
    piece_of: Callable[[dict[str, Any]], P]
    end_of: Callable[[dict[str, Any]], E]
    what: str
    hint: str


COMMAND: Final = Followed(
    "chunk", chunk_of, exec_result_of, "a command", "the command goes on; ask for it by its exec id"
)


async def follow(
    connection: Connection,
    order_after: Callable[[int], HttpRequest],
    followed: Followed[P, E],
    last_seq: int = 0,
) -> AsyncIterator[P | E]:
    """Yield items, then the end. `order_after(seq)` requests what comes after `seq`."""
    patience = Patience()
    if connection.reached:
        patience.there()
    while True:
        cause: Exception | None = None
        try:
            async with connection.stream(order_after(last_seq)) as answer:
                patience.there()
                async for event in events(answer):
                    if event.name == followed.piece:
                        piece = followed.piece_of(parsed(event))
                        if piece.seq > last_seq:
                            last_seq = piece.seq
                            yield piece
                    elif event.name == "done":
                        yield followed.end_of(parsed(event))
                        return
                    elif event.name == "error":
                        raise body_error(parsed(event))
        except BackendUnavailable as exc:
            if not patience.reached:
                raise
            cause = exc
        except SandkastenError:
            raise
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            cause = exc
        await patience.wait(
            f"the connection broke while {followed.what} was being followed", followed.hint, cause
        )
