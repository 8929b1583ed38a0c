"""Two byte streams joined back to back, bounded like a pair of sockets.

`receive` answers b"" once the other end is closed and everything was read; sending to a
closed end raises BrokenPipeError. Knows nothing of frames.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from sandkasten.wire.outbox import remainder

if TYPE_CHECKING:
    from sandkasten.wire.byte_streams import Buffer

# About what a Unix socket holds, so that a peer that stops reading is felt here too.
CAPACITY_BYTES = 256 * 1024


class Lane:
    """One direction: a bounded queue of bytes with one reader and one writer."""

    __slots__ = ("_changed", "_held", "_parts", "ended")

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._held = 0
        self._changed = asyncio.Event()
        self.ended = False

    def put(self, *parts: Buffer) -> int:
        if self.ended:
            raise BrokenPipeError("the other end is closed")
        room, taken = CAPACITY_BYTES - self._held, 0
        for part in parts:
            if taken == room:
                break
            piece = bytes(memoryview(part)[: room - taken])
            if piece:
                self._parts.append(piece)
                taken += len(piece)
        self._held += taken
        self._changed.set()
        return taken

    async def get(self, max_bytes: int) -> bytes:
        while not self._parts:
            if self.ended:
                return b""
            await self.changed()
        piece = self._parts.popleft()
        if len(piece) > max_bytes:
            self._parts.appendleft(piece[max_bytes:])
            piece = piece[:max_bytes]
        self._held -= len(piece)
        self._changed.set()
        return piece

    def give_back(self, data: bytes) -> None:
        if data:
            self._parts.appendleft(data)
            self._held += len(data)

    async def changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def end(self) -> None:
        self.ended = True
        self._changed.set()

    def wake(self) -> None:
        self._changed.set()


class MemoryStream:
    """One end of a pair; a `ports.ByteStream`."""

    __slots__ = ("_inward", "_outward", "sent")

    def __init__(self, inward: Lane, outward: Lane) -> None:
        self._inward = inward
        self._outward = outward
        self.sent = 0

    async def receive(self, max_bytes: int) -> bytes:
        return await self._inward.get(max_bytes)

    def send_nowait(self, *parts: Buffer) -> int:
        taken = self._outward.put(*parts)
        self.sent += taken
        return taken

    async def send(self, *parts: Buffer) -> None:
        while parts:
            parts = remainder(parts, self.send_nowait(*parts))
            if parts:
                await self._outward.changed()

    def half_close(self) -> None:
        self._outward.end()

    async def aclose(self) -> None:
        self._outward.end()
        self._inward.end()


def stream_pair() -> tuple[MemoryStream, MemoryStream]:
    one, other = Lane(), Lane()
    return MemoryStream(one, other), MemoryStream(other, one)
