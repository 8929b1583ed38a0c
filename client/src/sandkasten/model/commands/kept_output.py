"""The kept part of a command's output: first half, last half, and a count of what is between.

Memory stays within the caps whatever the command writes. Chunks are untrusted: one that comes twice
or overlaps is cut, one that skips ahead is a gap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from sandkasten.model.commands.exec_values import Source

# Chunks below this size are joined to the one before, so that a million one-byte writes
# cost their bytes and not a million objects.
_JOIN_BELOW = 16 * 1024


@dataclass(slots=True)
class _Piece:
    seq: int
    offset: int
    data: bytearray
    stream: _Stream


@dataclass(slots=True)
class _Stream:
    head_cap: int
    tail_cap: int
    end: int = 0
    head: list[_Piece] = field(default_factory=list)
    tail: deque[_Piece] = field(default_factory=deque)
    tail_bytes: int = 0


def gap_marker(missing: int) -> bytes:
    return f"\n… {missing} bytes not kept …\n".encode()


class KeptOutput:
    """Collects the chunks of one command in order of arrival."""

    __slots__ = ("_last", "_streams", "last_seq")

    def __init__(self, stdout_cap: int, stderr_cap: int) -> None:
        out = _Stream((stdout_cap + 1) // 2, stdout_cap // 2)
        # A command has a terminal or two pipes, never both, so one cap serves either.
        pty = _Stream((stdout_cap + 1) // 2, stdout_cap // 2)
        err = _Stream((stderr_cap + 1) // 2, stderr_cap // 2)
        self._streams: dict[Source, _Stream] = {"stdout": out, "stderr": err, "pty": pty}
        self._last: _Piece | None = None
        self.last_seq = 0

    def add(self, seq: int, source: Source, offset: int, data: bytes) -> int:
        """Keep what the caps allow; return how many bytes of this source were missed before it."""
        if seq <= self.last_seq:
            return 0
        self.last_seq = seq
        stream = self._streams[source]
        if offset < stream.end:
            data, offset = data[stream.end - offset :], stream.end
        gap = offset - stream.end
        stream.end = offset + len(data)
        room = stream.head_cap - offset
        if room > 0 and data:
            self._append(stream.head, seq, offset, data[:room], stream)
            offset, data = offset + min(room, len(data)), data[room:]
        if data and stream.tail_cap:
            if len(data) > stream.tail_cap:
                offset, data = stream.end - stream.tail_cap, data[-stream.tail_cap :]
            self._append(stream.tail, seq, offset, data, stream)
            stream.tail_bytes += len(data)
            _trim(stream)
        return gap

    def _append(
        self,
        pieces: list[_Piece] | deque[_Piece],
        seq: int,
        offset: int,
        data: bytes,
        stream: _Stream,
    ) -> None:
        last = self._last
        if (
            last is not None
            and pieces
            and pieces[-1] is last
            and last.offset + len(last.data) == offset
            and len(last.data) < _JOIN_BELOW
        ):
            last.data += data
            return
        self._last = _Piece(seq, offset, bytearray(data), stream)
        pieces.append(self._last)

    def kept(self, *sources: Source, marked: bool = True, totals: dict[Source, int]) -> bytes:
        """Return the kept bytes of these sources in order of arrival.

        `totals` is how much each source wrote; `marked` adds a line where bytes are missing.
        """
        streams = [self._streams[source] for source in sources]
        pieces = [piece for stream in streams for piece in (*stream.head, *stream.tail)]
        pieces.sort(key=lambda piece: (piece.seq, piece.offset))
        parts: list[bytes | bytearray] = []
        positions = {id(stream): 0 for stream in streams}
        for piece in pieces:
            missing = piece.offset - positions[id(piece.stream)]
            if missing > 0 and marked:
                parts.append(gap_marker(missing))
            parts.append(piece.data)
            positions[id(piece.stream)] = piece.offset + len(piece.data)
        for source, stream in zip(sources, streams, strict=True):
            missing = totals.get(source, stream.end) - positions[id(stream)]
            if missing > 0 and marked:
                parts.append(gap_marker(missing))
        return b"".join(parts)

    def has(self, source: Source) -> bool:
        return self._streams[source].end > 0

    def end(self, source: Source) -> int:
        """Return how many bytes of a source were seen."""
        return self._streams[source].end

    @property
    def incomplete(self) -> bool:
        """Return whether bytes that were written are not kept."""
        for stream in self._streams.values():
            size = sum(len(p.data) for p in stream.head) + sum(len(p.data) for p in stream.tail)
            if size != stream.end:
                return True
        return False


def _trim(stream: _Stream) -> None:
    while stream.tail_bytes > stream.tail_cap:
        first = stream.tail[0]
        excess = stream.tail_bytes - stream.tail_cap
        if len(first.data) <= excess:
            stream.tail.popleft()
            stream.tail_bytes -= len(first.data)
        else:
            del first.data[:excess]
            first.offset += excess
            stream.tail_bytes -= excess
