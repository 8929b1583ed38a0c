"""Decompress bytes piece by piece, whatever they were compressed with.

The format is recognised by its first bytes. A piece never has more than `PIECE` bytes, so a caller
that counts them can stop a bomb. gzip, bzip2 and xz use the standard library; zstd is the program
of that name, which is ended and reaped when the iteration stops, however it stops. Corrupt and
truncated input raises InvalidImage. Knows nothing of tar or of digests.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import shutil
import subprocess
import threading
import zlib
from typing import IO, TYPE_CHECKING, Protocol

from sandkasten.errors import InvalidImage
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

PIECE = 1 << 20
# The largest that `xz -9` needs is 65 MiB; a header can ask for 4 GiB.
_XZ_MEMORY = 256 << 20
_HEAD = 512
_SYSTEM_PATH = "/usr/bin:/bin:/usr/local/bin"


class ByteSource(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Decompressor(Protocol):
    """The interface that `bz2`, `lzma` and `_Gzip` share."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        plain = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        # A full piece may be followed by more output that needs no further input.
        self.needs_input = not self._inner.unconsumed_tail and len(plain) < max_length
        return plain


def _xz() -> _Decompressor:
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)


@dataclass(frozen=True, slots=True)
class Uncompressed:
    compressed: bool
    pieces: Generator[bytes, None, None]
    """The caller closes it if it does not take all pieces."""


def uncompressed(source: ByteSource) -> Uncompressed:
    """Return the content of `source`, which is read to its end as the pieces are taken."""
    head = b""
    while len(head) < _HEAD and (more := source.read(_HEAD - len(head))):
        head += more
    kind = kind_of(head)
    if kind == "plain":
        return Uncompressed(False, _as_it_is(head, source))
    if kind == "zstd":
        return Uncompressed(True, _by_program(head, source))
    streams: dict[str, Callable[[], _Decompressor]] = {
        "gzip": _Gzip,
        "bzip2": bz2.BZ2Decompressor,
        "xz": _xz,
    }
    return Uncompressed(True, _streams(kind, streams[kind], head, source))


def kind_of(head: bytes) -> str:
    """Return `plain` unless the first bytes are those of a compressed file and not of a tar."""
    if head[257:262] == b"ustar":
        return "plain"
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(b"BZh"):
        return "bzip2"
    if head.startswith(b"\xfd7zXZ\x00"):
        return "xz"
    # A frame, or one of the sixteen skippable kinds.
    if head.startswith(b"\x28\xb5\x2f\xfd") or (
        head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F
    ):
        return "zstd"
    return "plain"


def _as_it_is(head: bytes, source: ByteSource) -> Generator[bytes, None, None]:
    piece = head
    while piece:
        yield piece
        piece = source.read(PIECE)


def _streams(
    kind: str, begin: Callable[[], _Decompressor], data: bytes, source: ByteSource
) -> Generator[bytes, None, None]:
    """Yield one compressed stream after the other; only zeros may stand between and after them."""
    while data:
        stream = begin()
        while not stream.eof:
            if stream.needs_input and not data and not (data := source.read(PIECE)):
                raise _corrupt(kind, "it stops before its end")
            try:
                piece = stream.decompress(data, PIECE)
            except (zlib.error, lzma.LZMAError, OSError, ValueError) as exc:
                # `bz2` raises the last two instead of its own exception.
                raise _corrupt(kind, str(exc)) from exc
            data = b""
            if piece:
                yield piece
        data = stream.unused_data.lstrip(b"\0")
        while not data and (more := source.read(PIECE)):
            data = more.lstrip(b"\0")


def _corrupt(kind: str, why: str) -> InvalidImage:
    return InvalidImage(
        f"a layer could not be decompressed ({kind}): {why}",
        hint="the file is damaged or incomplete; get it again",
        kind="malformed",
    )


def _by_program(head: bytes, source: ByteSource) -> Generator[bytes, None, None]:
    # On the fixed system path: programs run as root are not looked up in the caller's PATH.
    program = shutil.which("zstd", path=_SYSTEM_PATH)
    if program is None:
        raise InvalidImage(
            "a layer is compressed with zstd, and no program to decompress it is installed",
            hint="install it (apt-get install zstd), or have the image compressed with gzip",
            kind="unsupported",
        )
    child = subprocess.Popen(
        [program, "--decompress", "--stdout", "--quiet", "--no-progress"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    feeder = _Feeder(head, source, child.stdin)
    try:
        feeder.start()
        while piece := child.stdout.read(PIECE):
            yield piece
        feeder.join()
        if feeder.failure is not None:
            raise feeder.failure
        # Its error output is a line or two, and never fills the pipe.
        error_text = child.stderr.read(2000).decode(errors="replace").strip()
        if child.wait() != 0:
            raise _corrupt("zstd", error_text or "the program failed")
    finally:
        child.kill()
        child.wait()
        feeder.join()
        child.stdout.close()
        child.stderr.close()


class _Feeder(threading.Thread):
    """Feeds the source to a program; ends when either of them does."""

    def __init__(self, head: bytes, source: ByteSource, into: IO[bytes]) -> None:
        super().__init__(name="sandkasten-zstd", daemon=True)
        self._head = head
        self._source = source
        self._into = into
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with contextlib.suppress(BrokenPipeError), self._into:
                piece = self._head
                while piece:
                    self._into.write(piece)
                    piece = self._source.read(PIECE)
        except BaseException as exc:  # noqa: BLE001  (raised again by the joining thread)
            self.failure = exc
