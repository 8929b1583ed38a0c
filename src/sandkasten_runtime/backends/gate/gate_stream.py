"""A connection to the gate of a sandbox: TLS to its Pod's address, then the token."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from sandkasten.disk.cleanup import finish

if TYPE_CHECKING:
    from sandkasten_runtime.backends.gate.entry_keys import EntryKeys

_BUFFER_BYTES: Final = 256 * 1024
_CLOSE_S: Final = 2.0


class GateStream:
    """Implements `ports.ByteStream`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._closed = False

    async def receive(self, max_bytes: int) -> bytes:
        if self._closed:
            return b""
        try:
            return await self._reader.read(max_bytes)
        except OSError:
            if self._closed:
                return b""
            raise

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        if self._closed:
            raise BrokenPipeError("the stream is closed")
        self._writer.write(b"".join(parts))
        await self._writer.drain()

    async def aclose(self) -> None:
        """Close. A pending receive returns b"". Twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        await finish(self._close())

    async def _close(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._writer.wait_closed()
        # TLS waits for the other side's end, which a node that is gone never sends. A transport
        # whose peer has closed has no protocol any more.
        with contextlib.suppress(AttributeError):
            self._writer.transport.abort()
            # An aborted transport closes its socket in the next turn of the loop.
            await asyncio.sleep(0)


async def connect(host: str, port: int, keys: EntryKeys, timeout_s: float) -> GateStream:
    """Connect. Raise OSError, which TimeoutError and ssl.SSLError are."""
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(
            host, port, ssl=keys.context(), server_hostname="", limit=_BUFFER_BYTES
        )
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    if shown != keys.certificate:
        writer.transport.abort()
        raise ConnectionAbortedError("another certificate than the gate's")
    writer.write(keys.token)
    return GateStream(reader, writer)
