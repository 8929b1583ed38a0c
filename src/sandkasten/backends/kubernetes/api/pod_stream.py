"""Standard input and output of a command in a container, as a byte stream over a WebSocket.

Each message begins with the number of its channel: 0 input, 1 output, 2 errors, 3 the end. Fails
only with OSError.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Iterator

_OUTPUT, _ERRORS, _END = 1, 2, 3
_TOLD_BYTES: Final = 400
# The API server and the kubelet take a message whole into memory.
_MESSAGE_BYTES: Final = 32 * 1024


class PodStream:
    """Implements `ports.ByteStream`. Standard error and the reason of an end are kept."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._left = b""
        self._closed = False
        self.told = ""

    async def receive(self, max_bytes: int) -> bytes:
        while not self._left:
            if self._closed:
                return b""
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                self._take(message.data)
            elif message.type is aiohttp.WSMsgType.ERROR and not self._closed:
                raise ConnectionResetError(str(message.data))
            elif message.type is not aiohttp.WSMsgType.TEXT:
                return b""
        found, self._left = self._left[:max_bytes], self._left[max_bytes:]
        return found

    def _take(self, data: bytes) -> None:
        if not data:
            return
        if data[0] == _OUTPUT:
            self._left = data[1:]
        elif data[0] in (_ERRORS, _END):
            self.told = (self.told + data[1:].decode(errors="replace"))[-_TOLD_BYTES:]

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        if self._closed:
            raise BrokenPipeError("the stream is closed")
        try:
            for piece in _pieces(b"".join(parts)):
                await self._socket.send_bytes(b"\0" + piece)
        except (aiohttp.ClientError, RuntimeError) as exc:
            raise BrokenPipeError(str(exc) or "the connection to the API server is gone") from exc

    async def aclose(self) -> None:
        """Close. A pending receive returns b"". Twice is fine."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._socket.close()


def _pieces(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), _MESSAGE_BYTES):
        yield data[at : at + _MESSAGE_BYTES]
