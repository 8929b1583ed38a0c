"""Responses that are produced while they are sent: the bytes of a file, a tar.

Everything that a response holds open is released when it ends: sent completely, failed, abandoned
by the client, or not read for too long. One piece is in memory at a time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response

from sandkasten.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AsyncExitStack

    from starlette.types import Receive, Scope, Send

# A connection that takes nothing for this long has no reader.
STALL_S = 60.0


class Streamed(Response):
    """A streamed response; `stack` is closed after the last byte or on failure."""

    def __init__(
        self,
        stack: AsyncExitStack,
        pieces: AsyncIterator[bytes],
        *,
        status: int = 200,
        headers: Mapping[str, str],
    ) -> None:
        self.status_code = status
        self.background = None
        self._held = stack
        self._pieces = pieces
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pumping = asyncio.ensure_future(self._pump(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((pumping, leaving), return_when=asyncio.FIRST_COMPLETED)
            if pumping.done():
                pumping.result()
        finally:
            for task in (pumping, leaving):
                task.cancel()
            await asyncio.wait((pumping, leaving))
            for task in (pumping, leaving):
                if not task.cancelled():
                    task.exception()
            leave = getattr(self._pieces, "aclose", None)
            if leave is not None:
                await leave()
            await self._held.aclose()

    async def _pump(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        async for piece in self._pieces:
            await _taken(send, piece, more=True)
        await _taken(send, b"", more=False)


class Followed(Streamed):
    """A response that lasts as long as its source, which may be for ever."""


async def _taken(send: Send, piece: bytes, *, more: bool) -> None:
    try:
        async with asyncio.timeout(STALL_S):
            await send({"type": "http.response.body", "body": piece, "more_body": more})
    except TimeoutError as exc:
        raise Cancelled("the client does not read what it asked for") from exc


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
