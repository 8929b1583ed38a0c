"""A command's standard input and output in a container, as a byte stream to a runner.

The engine frames what comes out (8 bytes of header for each piece); what goes in is plain. Fails
with OSError and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiodocker.stream import Stream

    from sandkasten.ports import ByteStream

_STDOUT = 1
_TOLD_BYTES = 400
# Pieces of a call are small next to this; joined, they are one packet.
_JOIN_BELOW = 64 * 1024
# For what was sent and lies in a buffer still.
_FLUSH_STEPS, _FLUSH_STEP_S = 200, 0.005


class ExecStream:
    """See `ports.ByteStream`. What the command says on its standard error is kept for messages."""

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
            found, self._left = self._left, b""
        else:
            found, self._left = self._left[:max_bytes], self._left[max_bytes:]
        return found

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
            # What is left of a connection that was lost has no transport any more.
            raise BrokenPipeError(str(exc) or "the connection to the engine is gone") from exc

    async def aclose(self) -> None:
        """A pending receive answers b"". Twice is fine."""
        if self._closed:
            return
        self._closed = True
        transport = self._transport()
        with contextlib.suppress(Exception):
            await self._stream.close()
        if transport is not None:
            # TLS says goodbye and waits for an answer, which an engine gives late or never; until
            # then the relay would believe in us.
            for _ in range(_FLUSH_STEPS):
                if not _unsent(transport):
                    break
                await asyncio.sleep(_FLUSH_STEP_S)
            with contextlib.suppress(AttributeError):
                transport.abort()

    def _transport(self) -> asyncio.WriteTransport | None:
        """What is left of the connection, where it is one of TLS."""
        connection = getattr(self._stream._resp, "connection", None)
        transport: asyncio.WriteTransport | None = getattr(connection, "transport", None)
        if transport is None or transport.get_extra_info("sslcontext") is None:
            return None
        return transport


def _unsent(transport: asyncio.WriteTransport) -> bool:
    try:
        return bool(transport.get_write_buffer_size())
    except AttributeError:
        # One of TLS that the other side has ended already has lost its protocol, and does not say.
        return False


class Begun:
    """A stream whose first bytes were looked at already."""

    def __init__(self, first: bytes, stream: ByteStream) -> None:
        self._first = first
        self._stream = stream

    async def receive(self, max_bytes: int) -> bytes:
        if not self._first:
            return await self._stream.receive(max_bytes)
        found, self._first = self._first[:max_bytes], self._first[max_bytes:]
        return found

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        await self._stream.send(*parts)

    async def aclose(self) -> None:
        await self._stream.aclose()
