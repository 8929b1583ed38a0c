"""Read the body of a request and parse it as JSON, both with limits.

Reading bounds the size and the client's time: a large body is PayloadTooLarge before it is in
memory, a slow one InvalidRequest (408). Parsing bounds the number of values and rejects duplicate
keys. A body of 16 MB can hold eight million numbers: seconds of parsing, and a hundred times its
size in memory. They are counted before any of them is made. All steps but the parser's own one are
short, so that a thread that parses a large body never keeps the event loop waiting.
"""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json
from starlette.requests import Request

from sandkasten.errors import InvalidRequest, PayloadTooLarge
from sandkasten.model.json_structure import Structure
from sandkasten.model.spelling import shown
from sandkasten_server.api.request.large_bodies import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

# Bytes a second that the slowest client still manages.
_SLOWEST: Final = 4096
# How many whole pauses a streamed body may take in all, beyond what its size allows.
_PAUSES: Final = 10
MAX_VALUES: Final = 100_000
"""Numbers, strings, lists and objects of one body: a table of 10,000 rows with ten columns."""

LEFT: Final = "sandkasten.left"
"""The key in a scope of an event that is set when the connection of the request is lost."""


class ClientLeft(Exception):
    """The client disconnected before the end of the response, and nothing more can be sent."""


async def read_body(
    request: Request,
    most: int,
    timeout_s: float,
    large: Callable[[], Awaitable[None]] | None = None,
) -> bytes:
    """Return the whole body, which arrives within `timeout_s` plus time for its size.

    `large` is awaited once, before more than LARGE_BYTES of it are kept. Nothing is read meanwhile.
    """
    pieces, count = [], 0
    async for piece in _pieces(request, most, timeout_s, timeout_s):
        if large is not None and count <= LARGE_BYTES < count + len(piece):
            await large()
        pieces.append(piece)
        count += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def read_asgi_body(
    scope: Any, receive: Any, most: int, timeout_s: float, large: Callable[[], Awaitable[None]]
) -> bytes:
    """Return the whole body for an application that has no request object yet."""
    return await read_body(Request(scope, receive), most, timeout_s, large)


def stream_body(request: Request, most: int, pause_s: float) -> AsyncIterator[bytes]:
    """Iterate over a streamed body, with a limit on pauses and on the total time."""
    return _pieces(request, most, pause_s, _PAUSES * pause_s)


async def _pieces(
    request: Request, most: int, pause_s: float, in_all_s: float
) -> AsyncIterator[bytes]:
    """Iterate: each piece within `pause_s`, all within `in_all_s` plus time for their size."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > most):
        raise _too_large(most)
    receive = request.receive
    count, waited_s, more = 0, 0.0, True
    while more:
        left_s = min(pause_s, in_all_s + count / _SLOWEST - waited_s)
        began = monotonic()
        try:
            async with asyncio.timeout(left_s):
                message = await receive()
        except TimeoutError as exc:
            raise InvalidRequest(
                "the body did not arrive in time",
                hint="send it without pauses",
                http_status=408,
            ) from exc
        # Only the client's time: what the reader of the pieces takes is ours.
        waited_s += monotonic() - began
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece, more = message.get("body", b""), message.get("more_body", False)
        count += len(piece)
        if count > most:
            raise _too_large(most)
        if piece:
            yield piece


def _too_large(most: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the body is larger than {most} bytes", hint="stream it to fs/upload", limit=most
    )


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return the object; InvalidRequest if it is not one, PayloadTooLarge if it has too much."""
    structure = Structure.at_most(raw)
    if structure.values > MAX_VALUES:
        structure = _counted(raw)
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as exc:
        raise InvalidRequest(
            f"the body is not valid JSON: {str(exc)[:200]}", hint="send one JSON object in UTF-8"
        ) from exc
    if not isinstance(value, dict):
        raise InvalidRequest("the body is not a JSON object", hint="send one JSON object")
    key_count = _keys(value)
    if structure.keys != key_count and _counted(raw).keys != key_count:
        raise _duplicate(raw)
    return value


def _counted(raw: bytes) -> Structure:
    """Count exactly; PayloadTooLarge above MAX_VALUES."""
    structure = Structure.counted(raw, MAX_VALUES)
    if structure is None:
        raise PayloadTooLarge(
            f"the body has more than {MAX_VALUES} values",
            hint="write the data to a file, and send the file to fs/upload",
            limit=MAX_VALUES,
        )
    return structure


def _keys(value: dict[str, Any]) -> int:
    count = 0
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if type(item) is dict:
            count += len(item)
            item = item.values()
        pending += [inner for inner in item if type(inner) is dict or type(inner) is list]
    return count


def _duplicate(raw: bytes) -> InvalidRequest:
    twice: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        twice.extend(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]

    json.loads(raw, object_pairs_hook=look)
    name = twice[0] if twice else ""
    return InvalidRequest(
        f"the body has the key {shown(name)} twice",
        hint="give it once: parsers disagree on which one counts",
        field=name[:100],
    )
