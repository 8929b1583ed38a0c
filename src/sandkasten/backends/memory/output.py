"""What a command printed: the first and the last bytes of each source, counted exactly.

The first half of the cap (rounded up) and the last half (rounded down) are kept byte for byte;
what lay between is known by the jump of the offsets. Writing never waits. Knows no commands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

CHUNK_BYTES = 64 * 1024
PTY, STDOUT, STDERR = 0, 1, 2


@dataclass(slots=True)
class Chunk:
    seq: int
    offset: int
    source: int
    data: bytes


@dataclass(slots=True)
class _Kept:
    cap: int
    written: int = 0
    head: list[Chunk] = field(default_factory=list)
    tail: deque[Chunk] = field(default_factory=deque)
    tail_bytes: int = 0

    @property
    def head_cap(self) -> int:
        return (self.cap + 1) // 2

    @property
    def tail_cap(self) -> int:
        return self.cap // 2


class Output:
    def __init__(self, caps: dict[int, int]) -> None:
        self._kept = {source: _Kept(cap) for source, cap in caps.items()}
        self.last_seq = 0
        self._dropped = False
        self._grown = asyncio.Event()

    def write(self, source: int, data: bytes) -> None:
        kept = self._kept[source]
        position = 0
        while position < len(data):
            in_head = kept.written < kept.head_cap
            room = kept.head_cap - kept.written if in_head else CHUNK_BYTES
            piece = data[position : position + min(room, CHUNK_BYTES)]
            position += len(piece)
            self.last_seq += 1
            chunk = Chunk(self.last_seq, kept.written, source, piece)
            kept.written += len(piece)
            if self._dropped:
                continue
            if in_head:
                kept.head.append(chunk)
            else:
                kept.tail.append(chunk)
                kept.tail_bytes += len(piece)
                self._trim(kept)
        self.touch()

    @staticmethod
    def _trim(kept: _Kept) -> None:
        while kept.tail_bytes > kept.tail_cap:
            first = kept.tail[0]
            cut = min(kept.tail_bytes - kept.tail_cap, len(first.data))
            kept.tail_bytes -= cut
            if cut == len(first.data):
                kept.tail.popleft()
            else:
                first.data = first.data[cut:]
                first.offset += cut

    def after(self, seq: int) -> list[Chunk]:
        """What is kept with a higher seq, in the order it was written."""
        found = [
            Chunk(chunk.seq, chunk.offset, chunk.source, chunk.data)
            for kept in self._kept.values()
            for chunk in (*kept.head, *kept.tail)
            if chunk.seq > seq
        ]
        return sorted(found, key=lambda chunk: chunk.seq)

    def written(self, source: int) -> int:
        return self._kept[source].written if source in self._kept else 0

    @property
    def truncated(self) -> bool:
        return self._dropped or any(kept.written > kept.cap for kept in self._kept.values())

    @property
    def held(self) -> int:
        return sum(
            len(chunk.data) for kept in self._kept.values() for chunk in (*kept.head, *kept.tail)
        )

    def drop(self) -> None:
        """Forget what was printed, keep what was counted."""
        self._dropped = self._dropped or self.held > 0
        for kept in self._kept.values():
            kept.head.clear()
            kept.tail.clear()
            kept.tail_bytes = 0

    def touch(self) -> None:
        """Wake whoever follows."""
        self._grown.set()
        self._grown = asyncio.Event()

    async def grown(self) -> None:
        await self._grown.wait()
