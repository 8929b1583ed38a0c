"""A byte stream in the binary messages of a WebSocket, for providers that pass only HTTP on.

Fails only with OSError.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import aiohttp

from sandkasten.outgoing_http import UnexpectedRedirect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Proxies take a message whole into memory.
_MESSAGE_BYTES: Final = 32 * 1024
_MOST_MESSAGE: Final = 4 * 1024 * 1024
# Proxies end a connection on which nothing moves, often after a minute.
_HEARTBEAT_S: Final = 25.0
_CLOSE_S: Final = 2.0
_TOLD_CHARS: Final = 200


class WebSocketStream:
    """Implements `ports.ByteStream`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._left = memoryview(b"")
        self._closed = False

    async def receive(self, max_bytes: int) -> bytes:
        while not self._left:
            if self._closed:
                return b""
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                self._left = memoryview(message.data)
            elif message.type is aiohttp.WSMsgType.ERROR and not self._closed:
                raise ConnectionResetError(str(message.data))
            else:
                return b""
        data, self._left = bytes(self._left[:max_bytes]), self._left[max_bytes:]
        return data

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        if self._closed:
            raise BrokenPipeError("the stream is closed")
        try:
            for piece in _pieces(b"".join(parts)):
                await self._socket.send_bytes(piece)
        except (aiohttp.ClientError, RuntimeError) as exc:
            raise BrokenPipeError(str(exc) or "the connection is gone") from exc

    async def aclose(self) -> None:
        """Close. A pending receive returns b"". Twice is fine."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._socket.close()


async def connect(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], timeout_s: float
) -> WebSocketStream:
    """Open a WebSocket, with a session of `outgoing_http`. A sandbox may answer in place of its
    gate. Raise RefusedWebSocket if the server refuses, else OSError.
    """
    timeout = aiohttp.ClientWSTimeout(ws_close=_CLOSE_S)
    try:
        async with asyncio.timeout(timeout_s):
            socket = await session.ws_connect(
                url,
                headers=headers,
                timeout=timeout,
                heartbeat=_HEARTBEAT_S,
                max_msg_size=_MOST_MESSAGE,
                compress=0,
            )
    except UnexpectedRedirect as exc:
        raise RefusedWebSocket(exc.status, "and redirects to another address") from exc
    except aiohttp.WSServerHandshakeError as exc:
        raise RefusedWebSocket(exc.status, exc.message[:_TOLD_CHARS]) from exc
    except aiohttp.ClientError as exc:
        raise ConnectionResetError(str(exc) or type(exc).__name__) from exc
    return WebSocketStream(socket)


class RefusedWebSocket(ConnectionRefusedError):
    """The server did not switch to a WebSocket."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the answer is {status} {message}")
        self.status = status


def _pieces(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), _MESSAGE_BYTES):
        yield data[at : at + _MESSAGE_BYTES]
