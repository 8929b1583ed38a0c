"""Archives as streams: what a file is compressed with, and reading it in order.

Compression is told by the first bytes, never by a file name. gzip, bzip2 and xz are read here;
zstd by its own program, which the message names when it is missing. InvalidImage for what is
damaged, for more bytes than any archive has, and for what is cut short.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import subprocess
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from sandkasten.errors import InvalidImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MAX_ARCHIVE_BYTES: Final = 64 * 1024**3
CHUNK: Final = 1024 * 1024
_MAGIC: Final = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)


def compression(head: bytes) -> str:
    """The name of it; empty for none."""
    return next((name for magic, name in _MAGIC if head.startswith(magic)), "")


class Seeking:
    """A plain file, passed over by seeking. Raises where a skip would leave it."""

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
    """A stream whose bytes are also written to a file, because they will be needed again."""

    def __init__(
        self, source: BinaryIO, copy: BinaryIO, progress: Callable[[int], None] | None
    ) -> None:
        self._source = source
        self._copy = copy
        self._progress = progress
        self._total = 0

    def read(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count > 0:
            part = self._take(min(count, CHUNK))
            if not part:
                break
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def skip(self, count: int) -> None:
        while count > 0:
            part = self._take(min(count, CHUNK))
            if not part:
                raise cut_short()
            count -= len(part)

    def drain(self) -> None:
        """To the end: what follows the last member decides whether the stream is whole."""
        while self._take(CHUNK):
            pass

    def _take(self, count: int) -> bytes:
        try:
            part = self._source.read(count)
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as exc:
            raise InvalidImage(
                f"the archive cannot be decompressed: {exc}", hint="it is damaged; get it again"
            ) from exc
        except OSError as exc:
            # bz2 says it this way; a disk that fails has an errno.
            if exc.errno is not None:
                raise
            raise InvalidImage(
                f"the archive cannot be decompressed: {exc}", hint="it is damaged; get it again"
            ) from exc
        self._total += len(part)
        if self._total > MAX_ARCHIVE_BYTES:
            raise InvalidImage(
                f"the archive is larger than {MAX_ARCHIVE_BYTES} bytes when decompressed",
                hint="no image needs that; the archive is not what it seems",
            )
        self._copy.write(part)
        if self._progress is not None:
            self._progress(0)
        return part


@contextmanager
def decompressed(path: Path, kind: str) -> Iterator[BinaryIO]:
    """The file as it was before it was compressed."""
    if kind == "zstd":
        with _zstd(path) as stream:
            yield stream
        return
    openers: dict[str, Any] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
    with cast("BinaryIO", openers[kind](path, "rb")) as stream:
        yield stream


@contextmanager
def _zstd(path: Path) -> Iterator[BinaryIO]:
    program = shutil.which("zstd")
    if program is None:
        raise InvalidImage(
            "the archive is compressed with zstd, and there is no program to read it",
            hint="install zstd (apt-get install zstd), or decompress it first",
        )
    with path.open("rb") as file:
        process = subprocess.Popen(
            [program, "-dcq", "--no-progress"],
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath},
        )
    assert process.stdout is not None
    try:
        yield cast("BinaryIO", process.stdout)
        # Only a reader that went to the end learns whether the whole was sound.
        if not process.stdout.read(1) and process.wait() != 0:
            raise InvalidImage(
                "the archive cannot be decompressed: zstd refused it",
                hint="it is damaged; get it again",
            )
    finally:
        process.stdout.close()
        process.kill()
        process.wait()


def cut_short() -> InvalidImage:
    return InvalidImage("the archive cannot be read: it is cut short", hint="get it again")
