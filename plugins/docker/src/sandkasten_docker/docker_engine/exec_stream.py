"""Standard input and output of a command in a container, as a byte stream to a runner.

The engine frames the output (an 8-byte header per piece); the input is plain. Fails only with
OSError.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiodocker.stream import Stream

_STDOUT = 1
_TOLD_BYTES = 400
# Pieces of a call are small next to this; joined, they are one packet.
_JOIN_BELOW = 64 * 1024
# For data that was sent and is still in a buffer.
_FLUSH_STEPS, _FLUSH_STEP_S = 200, 0.005


class ExecStream:
    """Implements `ports.ByteStream`. The command's standard error is kept for messages."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._left = b""
        self._closed = False
        self.told = ""

    async def receive(self, max_bytes: int) -> bytes:
        while not self._left:
            if self._closed:
                return b""
            message = await self._read()
            if message is None:
                return b""
            if message[0] == _STDOUT:
                self._left = message[1]
            else:
                self.told = (self.told + message[1].decode(errors="replace"))[-_TOLD_BYTES:]
        if len(self._left) <= max_bytes:
            data, self._left = self._left, b""
        else:
            data, self._left = self._left[:max_bytes], self._left[max_bytes:]
        return data

    async def _read(self) -> tuple[int, bytes] | None:
        import aiohttp

        try:
            return await self._stream.read_out()
        except (aiohttp.ClientError, RuntimeError) as exc:
            if self._closed:
                return None
            raise ConnectionResetError(str(exc)) from exc

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        import aiohttp

        if self._closed:
            raise BrokenPipeError("the stream is closed")
        try:
            if sum(len(part) for part in parts) < _JOIN_BELOW:
                await self._stream.write_in(b"".join(parts))
            else:
                for part in parts:
                    await self._stream.write_in(bytes(part))
        except (aiohttp.ClientError, RuntimeError, AssertionError, AttributeError) as exc:
            # A lost connection has no transport any more.
            lost = "the connection to the Docker Engine is gone"
            raise BrokenPipeError(str(exc) or lost) from exc

    async def aclose(self) -> None:
        """Close. A pending receive returns b"". Twice is fine."""
        if self._closed:
            return
        self._closed = True
        transport = self._transport()
        with contextlib.suppress(Exception):
            await self._stream.close()
        if transport is not None:
            # TLS sends a close and waits for the answer, which an engine sends late or never; until
            # then the relay keeps the connection open.
            for _ in range(_FLUSH_STEPS):
                if not _unsent(transport):
                    break
                await asyncio.sleep(_FLUSH_STEP_S)
            with contextlib.suppress(AttributeError):
                transport.abort()

    def _transport(self) -> asyncio.WriteTransport | None:
        """Return the plain transport below a TLS connection."""
        connection = getattr(self._stream._resp, "connection", None)
        transport: asyncio.WriteTransport | None = getattr(connection, "transport", None)
        if transport is None or transport.get_extra_info("sslcontext") is None:
            return None
        return transport


def _unsent(transport: asyncio.WriteTransport) -> bool:
    try:
        return bool(transport.get_write_buffer_size())
    except AttributeError:
        # A TLS transport whose peer has already closed has lost its protocol, and raises nothing.
        return False
