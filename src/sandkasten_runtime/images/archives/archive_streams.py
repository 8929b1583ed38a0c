"""Archives read in order: a plain file by seeking, a compressed one while it is written out.

Both serve `tar_index`. Raises InvalidImage for a truncated archive, and for more bytes than any
archive has.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, Final

from sandkasten.errors import InvalidImage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

MAX_ARCHIVE_BYTES: Final = 64 << 30


class Seeking:
    """A plain file, skipped by seeking. Raises if a skip would leave it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0
        self._size = os.fstat(fd).st_size

    def read(self, count: int) -> bytes:
        data = os.pread(self._fd, count, self._at)
        self._at += len(data)
        return data

    def skip(self, count: int) -> None:
        self._at += count
        # The last member may lack its padding.
        if self._at - 511 > self._size:
            raise cut_short()


class Keeping:
    """Pieces whose bytes are also written to a file, because they are needed again.

    `report` is called with the number of bytes so far.
    """

    def __init__(
        self,
        pieces: Generator[bytes, None, None],
        copy: BinaryIO,
        report: Callable[[int], None],
    ) -> None:
        self._pieces = pieces
        self._copy = copy
        self._told = report
        self._rest = memoryview(b"")
        self._total = 0

    def read(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count > 0 and self._more():
            part = bytes(self._rest[:count])
            self._rest = self._rest[count:]
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def skip(self, count: int) -> None:
        while count > 0:
            if not self._more():
                raise cut_short()
            passed = min(count, len(self._rest))
            self._rest = self._rest[passed:]
            count -= passed

    def drain(self) -> None:
        """Read to the end: only there a compressed file proves to be complete."""
        while self._more():
            self._rest = memoryview(b"")

    def _more(self) -> bool:
        """Return whether anything is left; if so, some of it is in `_rest`."""
        if self._rest:
            return True
        piece = next(self._pieces, b"")
        self._total += len(piece)
        if self._total > MAX_ARCHIVE_BYTES:
            raise InvalidImage(
                f"the archive is larger than {MAX_ARCHIVE_BYTES} bytes when decompressed",
                hint="the archive is probably not an image archive",
            )
        self._copy.write(piece)
        self._told(self._total)
        self._rest = memoryview(piece)
        return bool(piece)


def cut_short() -> InvalidImage:
    return InvalidImage("the archive cannot be read: it is truncated", hint="get it again")
