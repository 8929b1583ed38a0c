"""Read the body of a request, with a limit on its size and on the client's time.

A large body is PayloadTooLarge before it is in memory, a slow one InvalidRequest (408).
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request

from sandkasten.api.request.large_bodies import LARGE_BYTES
from sandkasten.errors import InvalidRequest, PayloadTooLarge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

# Bytes a second that the slowest client still manages.
_SLOWEST: Final = 4096
# How many whole pauses a streamed body may take in all, beyond what its size allows.
_PAUSES: Final = 10


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
    told = request.headers.get("content-length", "")
    if told.isascii() and told.isdigit() and (len(told) > 18 or int(told) > most):
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
