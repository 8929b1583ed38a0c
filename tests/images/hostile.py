"""Descriptions of hostile archives, and how they are built."""

from __future__ import annotations

import gzip
import io
import itertools
import struct
import subprocess
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandkasten_runtime.images.layers.layer_unpack import Caps
from tests.images.tars import END, GNU, file, header, padded, pax

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MiB = 1 << 20
SMALL = Caps(bytes=64 * MiB, entries=20_000)


class Endless(io.RawIOBase):
    """An archive that is generated as it is read, so that a large one costs nothing."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.taken = 0

    def read(self, size: int = -1) -> bytes:
        del size
        piece = next(self._pieces, b"")
        self.taken += len(piece)
        return piece


@dataclass(frozen=True, slots=True)
class Refused:
    archive: Callable[[], bytes | Endless]
    kind: str
    words: str
    caps: Caps = SMALL
    most_read: int = 8 * MiB


@dataclass(frozen=True, slots=True)
class Harmless:
    archive: Callable[[], bytes]
    left: dict[str, str]
    skipped: int = 0
    modes: dict[str, int] = field(default_factory=dict)


def tar(*parts: bytes) -> bytes:
    return b"".join(parts) + END


X = file(b"x", b"inside")
DEEP = b"/".join([b"d"] * 10_000)


def one_entry_after_the_other(count: int) -> Iterator[bytes]:
    for start in range(0, count, 1000):
        yield b"".join(file(b"f%d" % number) for number in range(start, start + 1000))
    yield END


def a_gigabyte(flag: bytes) -> Iterator[bytes]:
    yield header(b"././@LongLink", flag=flag, size=1 << 30, magic=GNU)
    yield from itertools.repeat(b"a" * MiB, 1024)
    yield X + END


def zeros(archive: bytes, count: int) -> bytes:
    """Return the archive with whole MiB of zeros behind it, compressed thousandfold."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(archive) + packer.flush(zlib.Z_FULL_FLUSH)
    # The same block again and again: compressing each would take seconds.
    block = packer.compress(bytes(MiB)) + packer.flush(zlib.Z_FULL_FLUSH)
    packed += block * (count // MiB) + packer.flush()
    check = zlib.crc32(archive)
    for _ in range(count // MiB):
        check = zlib.crc32(bytes(MiB), check)
    length = len(archive) + count & 0xFFFFFFFF
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + packed + struct.pack("<II", check, length)


def corrupt_gzip_sum() -> bytes:
    data = bytearray(gzip.compress(tar(X)))
    data[-8] ^= 0xFF
    return bytes(data)


def sparse_at_the_front(lines: bytes, data: bytes, size: int) -> bytes:
    words = [
        (b"GNU.sparse.major", b"1"),
        (b"GNU.sparse.minor", b"0"),
        (b"GNU.sparse.name", b"s"),
        (b"GNU.sparse.realsize", b"%d" % size),
    ]
    return pax(*words) + file(b"GNUSparseFile.0/s", padded(lines) + data)


def zstd(data: bytes) -> bytes:
    done = subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True)
    return done.stdout
