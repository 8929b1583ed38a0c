"""TLS to a gate over any byte stream, such as one that a provider of machines opened for us."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sandkasten.ports import ByteStream
    from sandkasten_runtime.backends.gate.entry_keys import EntryKeys

_PIECE_BYTES: Final = 64 * 1024


class TlsStream:
    """Implements `ports.ByteStream`. Fails only with OSError, which ssl.SSLError is."""

    def __init__(self, below: ByteStream, keys: EntryKeys) -> None:
        self._below = below
        self._arrived = ssl.MemoryBIO()
        self._leaving = ssl.MemoryBIO()
        self._tls = keys.context().wrap_bio(self._arrived, self._leaving)
        # Records must leave in the order in which they were made.
        self._turn = asyncio.Lock()
        self._closed = False

    async def shake_hands(self, keys: EntryKeys) -> None:
        """Verify the gate's certificate and send the token."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
        if self._tls.getpeercert(binary_form=True) != keys.certificate:
            raise ConnectionAbortedError("another certificate than the gate's")
        await self.send(keys.token)

    async def receive(self, max_bytes: int) -> bytes:
        while not self._closed:
            try:
                return self._tls.read(max_bytes)
            except ssl.SSLWantReadError:
                if self._leaving.pending:
                    await self._flush()
                try:
                    await self._feed()
                except ConnectionResetError:
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
        return b""

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        if self._closed:
            raise BrokenPipeError("the stream is closed")
        data = b"".join(parts)
        for at in range(0, len(data), _PIECE_BYTES):
            self._tls.write(data[at : at + _PIECE_BYTES])
            await self._flush()

    async def aclose(self) -> None:
        """Close. A pending receive returns b"". Twice is fine."""
        if not self._closed:
            self._closed = True
            await self._below.aclose()

    async def _feed(self) -> None:
        data = await self._below.receive(_PIECE_BYTES)
        if not data:
            raise ConnectionResetError("the gate ended the connection")
        self._arrived.write(data)

    async def _flush(self) -> None:
        async with self._turn:
            data = self._leaving.read()
            if data:
                await self._below.send(data)


async def enter(below: ByteStream, keys: EntryKeys, timeout_s: float) -> TlsStream:
    """Return the stream behind the gate; close what is below it if that fails. Raise OSError."""
    stream = TlsStream(below, keys)
    try:
        async with asyncio.timeout(timeout_s):
            await stream.shake_hands(keys)
    except BaseException:
        await asyncio.shield(stream.aclose())
        raise
    return stream
