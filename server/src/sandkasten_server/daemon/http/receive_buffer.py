"""Received bytes, parsed in slices with turns for other connections in between; and the end.

A parser works through all it is given: a read of 256 kB can hold tens of thousands of frames or
requests, and every other client waits meanwhile.
"""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

# Parsed in a row; a client with one large message notices no difference.
TURN_S: Final = 0.005
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class ReceiveBuffer:
    """Reads from a connection only when everything that was read is parsed."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        *,
        slice_bytes: int,
        parse: Callable[[bytes], None],
        is_paused: Callable[[], bool],
    ) -> None:
        """`is_paused`: True while the application has unread data; parsing waits."""
        self._slice_bytes = slice_bytes
        self._transport = transport
        self._loop = loop
        self._parse = parse
        self._is_paused = is_paused
        self._data = b""
        self._at = 0
        self._turn: asyncio.Handle | None = None
        self._parsing = False

    def received(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data
        self._at = 0
        self.proceed()

    def proceed(self) -> None:
        """Parse what is left, then read on. Call it when the application takes data again."""
        if self._turn is None and not self._parsing:
            self._proceed()

    def close(self) -> None:
        self._data, self._at = b"", 0
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _proceed(self) -> None:
        self._turn, self._parsing = None, True
        until = monotonic() + TURN_S
        try:
            while self._data and not self._is_paused():
                part = self._data[self._at : self._at + self._slice_bytes]
                self._at += self._slice_bytes
                if self._at >= len(self._data):
                    self._data, self._at = b"", 0
                self._parse(part)
                if self._transport.is_closing():
                    break
                if self._data and monotonic() > until:
                    self._turn = self._loop.call_soon(self._proceed)
                    break
        finally:
            self._parsing = False
        if self._transport.is_closing():
            self.close()
        elif self._data:
            self._transport.pause_reading()
        elif not self._is_paused():
            self._transport.resume_reading()


def has_left(transport: asyncio.Transport) -> bool:
    """Return whether the peer has closed its side, also behind bytes that were not read yet."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def reset(transport: asyncio.Transport) -> None:
    """Close at once and drop unsent bytes: a client that never reads would keep them."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
