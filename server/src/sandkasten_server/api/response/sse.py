"""Server-sent events: a response that lasts as long as its source or its reader.

A reader that disconnects ends the source at once, but not what the source watches. A quiet source
gets a comment line from time to time, so that no proxy takes the connection for dead.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from sandkasten.errors import SandkastenError
from sandkasten_server.api.error_responses import body_of, unforeseen
from sandkasten_server.api.request.request_body import ClientLeft
from sandkasten_server.api.response.json_response import as_json, is_large, pieces_in_turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from sandkasten_server.api.request.http_call import Call

KEEP_ALIVE_S = 15.0
# What is refused is refused within this; a command that prints nothing for longer has begun.
_FIRST_S = 0.5
_COMMENT = b": still here\n\n"
_END = b"\n\n"
# JSON allows them raw in a string, and many clients take them for the end of a line.
_LINE_BREAKS = tuple((char.encode(), b"\\u%04x" % ord(char)) for char in "\x85\u2028\u2029")


def event(name: str, fields: dict[str, Any], the_id: int | None = None) -> bytes:
    """Return one event, with the data in one line, also for a reader that splits at U+2028."""
    return _head(name, the_id) + _one_line(as_json(fields)) + _END


async def large_event(name: str, fields: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yield one event in pieces. Its data may be large, and other requests run meanwhile."""
    if not is_large(fields):
        yield event(name, fields)
        return
    yield _head(name, None)
    async for piece in pieces_in_turns(fields):
        yield _one_line(piece)
    yield _END


def _head(name: str, the_id: int | None) -> bytes:
    number = b"" if the_id is None else b"id: %d\n" % the_id
    return b"%sevent: %s\ndata: " % (number, name.encode())


def _one_line(data: bytes) -> bytes:
    for raw, escaped in _LINE_BREAKS:
        data = data.replace(raw, escaped)
    return data


async def begun(events: AsyncIterator[bytes], call: Call) -> Response:
    """Return the response; if the source fails before its first event, raise that error."""
    first = asyncio.ensure_future(_next(events))
    try:
        await asyncio.wait((first,), timeout=_FIRST_S)
        if first.done():
            first.result()
    except BaseException:
        await _end(first, events)
        raise
    return EventStream(events, first, call.request_id)


class EventStream(Response):
    """A response of events. `first` is the pending or finished read of the first one."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], first: asyncio.Future[bytes | None], request_id: str
    ) -> None:
        super().__init__(
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
            media_type=self.media_type,
        )
        del self.headers["content-length"]
        self._events = events
        self._first = first
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(_gone(receive))
        sending = asyncio.ensure_future(self._send_all(send))
        try:
            await asyncio.wait((leaving, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            leaving.cancel()
            sending.cancel()
            await asyncio.gather(leaving, sending, return_exceptions=True)
            await _end(self._first, self._events)

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        coming: asyncio.Future[bytes | None] = self._first
        between_events = True
        try:
            while True:
                if not coming.done():
                    done, _ = await asyncio.wait((coming,), timeout=KEEP_ALIVE_S)
                    if not done:
                        if between_events:
                            await send(_body(_COMMENT))
                        continue
                data = coming.result()
                if data is None:
                    break
                await send(_body(data))
                between_events = data.endswith(_END)
                coming = asyncio.ensure_future(_next(self._events))
        except SandkastenError as exc:
            await send(_body(event("error", body_of(exc, self._request_id))))
        except ClientLeft:
            raise
        except Exception as exc:
            # The status line is already sent; the reader must still learn of the failure.
            error = body_of(unforeseen(exc), self._request_id)
            await send(_body(event("error", error)))
            raise
        finally:
            # Also one that is done: a reader that left did not receive how it ended.
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _body(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _next(events: AsyncIterator[bytes]) -> bytes | None:
    return await anext(events, None)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(first: asyncio.Future[bytes | None], events: AsyncIterator[bytes]) -> None:
    if not first.done():
        first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    with suppress(SandkastenError):
        await events.aclose()  # type: ignore[attr-defined]
