"""Archives made to do harm: each is refused by name or comes out harmless, and none gets outside.

Run as root, where the program sees nothing but its target, and once more as an ordinary user,
where only the care it takes with names holds it back.
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import os
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import pytest

from sandkasten.errors import InvalidImage
from sandkasten.images.unpack import Caps, unpack_layer
from tests.conformance.test_as_ordinary_user import UID, as_user, interpreter
from tests.images.tars import (
    END,
    GNU,
    base256,
    directory,
    file,
    hard_link,
    header,
    long,
    octal,
    old_sparse,
    padded,
    pax,
    record,
    sparse_records,
    symlink,
    tree,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
MiB = 1 << 20
SMALL = Caps(bytes=64 * MiB, entries=20_000)


class Endless(io.RawIOBase):
    """An archive that is made as it is read, so that a large one costs nothing."""

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
    """Compressed thousandfold."""
    return gzip.compress(archive + bytes(count), 6, mtime=0)


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


REFUSED: dict[str, Refused] = {
    # -- names that lead upwards
    "dot dot": Refused(lambda: tar(file(b"../canary/new", b"!")), "hostile", "upwards"),
    "dot dot in the middle": Refused(
        lambda: tar(directory(b"a"), file(b"a/../../canary/new", b"!")), "hostile", "upwards"
    ),
    "dot dot alone": Refused(lambda: tar(directory(b"..", mode=0)), "hostile", "upwards"),
    "dot dot at the end": Refused(lambda: tar(directory(b"a/..")), "hostile", "upwards"),
    "dot dot behind a slash": Refused(
        lambda: tar(file(b"/../canary/new", b"!")), "hostile", "upwards"
    ),
    "dot dot in the prefix": Refused(
        lambda: tar(file(b"new", b"!", tail=b"../canary")), "hostile", "upwards"
    ),
    "dot dot by pax": Refused(
        lambda: tar(pax((b"path", b"../canary/new")), X), "hostile", "upwards"
    ),
    "dot dot by a long name": Refused(lambda: tar(long(b"../canary/new"), X), "hostile", "upwards"),
    "dot dot as a symlink": Refused(
        lambda: tar(symlink(b"../canary/new", b"/")), "hostile", "upwards"
    ),
    "dot dot as a device": Refused(
        lambda: tar(header(b"../canary/new", flag=b"3")), "hostile", "upwards"
    ),
    "the root as a file": Refused(lambda: tar(file(b"./", b"!")), "malformed", "type '0'"),
    "the root as a symlink": Refused(lambda: tar(symlink(b".", b"/")), "hostile", "root"),
    # -- symlinks, and members behind them
    "file behind a symlink": Refused(
        lambda: tar(symlink(b"a", b"../canary"), file(b"a/new", b"!")), "hostile", "no directory"
    ),
    "file behind a symlink to /": Refused(
        lambda: tar(symlink(b"a", b"/"), file(b"a/tmp/new", b"!")), "hostile", "no directory"
    ),
    "file behind a symlink to ..": Refused(
        lambda: tar(symlink(b"a", b".."), file(b"a/canary/new", b"!")), "hostile", "no directory"
    ),
    "file behind a symlink inside": Refused(
        lambda: tar(directory(b"real"), symlink(b"a", b"real"), file(b"a/new", b"!")),
        "hostile",
        "no directory",
    ),
    "file behind a chain of symlinks": Refused(
        lambda: tar(symlink(b"c", b".."), symlink(b"b", b"c"), symlink(b"a", b"b"), file(b"a/x")),
        "hostile",
        "no directory",
    ),
    "directory turned symlink, then a child": Refused(
        lambda: tar(
            directory(b"a"), file(b"a/x", b"1"), symlink(b"a", b"../canary"), file(b"a/x", b"2")
        ),
        "hostile",
        "no directory",
    ),
    "symlink deep inside a path": Refused(
        lambda: tar(symlink(b"a/b/c", b"../../../canary"), file(b"a/b/c/d/new", b"!")),
        "hostile",
        "no directory",
    ),
    "whiteout behind a symlink": Refused(
        lambda: tar(symlink(b"a", b"../canary"), file(b"a/.wh.kept")), "hostile", "no directory"
    ),
    "opaque marker behind a symlink": Refused(
        lambda: tar(symlink(b"a", b"../canary"), file(b"a/.wh..wh..opq")), "hostile", "no dir"
    ),
    "hard link behind a symlink": Refused(
        lambda: tar(X, symlink(b"a", b"../canary"), hard_link(b"a/new", b"x")), "hostile", "no dir"
    ),
    "child of a file": Refused(lambda: tar(X, file(b"x/y")), "hostile", "no directory"),
    # -- hard links
    "hard link outside": Refused(
        lambda: tar(hard_link(b"h", b"../canary/kept")), "hostile", "upwards"
    ),
    "hard link to an absolute path": Refused(
        lambda: tar(hard_link(b"h", b"/etc/passwd")), "hostile", "no file of this layer"
    ),
    "hard link through a symlink": Refused(
        lambda: tar(symlink(b"a", b"../canary"), hard_link(b"h", b"a/kept")),
        "hostile",
        "no file of this layer",
    ),
    "hard link by pax": Refused(
        lambda: tar(pax((b"linkpath", b"../canary/kept")), hard_link(b"h", b"x")),
        "hostile",
        "upwards",
    ),
    "hard link to a directory": Refused(
        lambda: tar(directory(b"d"), hard_link(b"h", b"d")), "hostile", "no file of this layer"
    ),
    "hard link to the root": Refused(
        lambda: tar(hard_link(b"h", b"/")), "hostile", "no file of this layer"
    ),
    "hard link to a whiteout": Refused(
        lambda: tar(file(b".wh.w"), hard_link(b"h", b"w")), "hostile", "no file of this layer"
    ),
    "hard link in the place of its target's directory": Refused(
        lambda: tar(file(b"d/f", b"!"), hard_link(b"d", b"d/f")), "hostile", "no file of this"
    ),
    "hard link to what comes later": Refused(
        lambda: tar(hard_link(b"h", b"x"), X), "hostile", "no file of this layer"
    ),
    # -- whiteouts
    "whiteout of ..": Refused(lambda: tar(file(b".wh...")), "hostile", "hides no name"),
    "whiteout of .": Refused(lambda: tar(file(b"a/.wh..")), "hostile", "hides no name"),
    "whiteout of nothing": Refused(lambda: tar(file(b".wh.")), "hostile", "hides no name"),
    "whiteout with a slash": Refused(lambda: tar(file(b".wh.a/b")), "hostile", "below a whiteout"),
    "whiteout of a path upwards": Refused(
        lambda: tar(file(b".wh.a/../../canary")), "hostile", "upwards"
    ),
    "opaque marker below a whiteout": Refused(
        lambda: tar(file(b".wh.a/.wh..wh..opq")), "hostile", "below a whiteout"
    ),
    # -- numbers
    "size 2^63": Refused(
        lambda: tar(header(b"x", size=b"\x80" + (1 << 63).to_bytes(11, "big"))),
        "malformed",
        "size",
    ),
    "size 2^63 - 1": Refused(
        lambda: tar(header(b"x", size=base256((1 << 63) - 1))), "limit", "bytes"
    ),
    "size of all ones": Refused(
        lambda: tar(header(b"x", size=b"\xbf" + b"\xff" * 11)), "malformed", "size"
    ),
    "size below zero": Refused(
        lambda: tar(header(b"x", size=base256(-512))), "malformed", "negative size"
    ),
    "size with a minus": Refused(
        lambda: tar(header(b"x", size=b"-0000000512\0")), "malformed", "size"
    ),
    "size of the most octal digits": Refused(
        lambda: tar(header(b"x", size=b"7" * 12)), "limit", "bytes"
    ),
    "size that is no number": Refused(
        lambda: tar(header(b"x", size=b"0x100\0\0\0\0\0\0\0")), "malformed", "size"
    ),
    "sizes that only add up to too much": Refused(
        lambda: tar(*(file(b"f%d" % n, bytes(MiB)) for n in range(5))),
        "limit",
        "more than 4194304 bytes",
        Caps(bytes=4 * MiB),
    ),
    "pax size of 2^64": Refused(
        lambda: tar(pax((b"size", b"18446744073709551616")), X), "malformed", "pax"
    ),
    "pax size below zero": Refused(lambda: tar(pax((b"size", b"-1")), X), "malformed", "pax"),
    "pax size larger than the data": Refused(
        lambda: tar(pax((b"size", b"%d" % MiB)), X), "malformed", "stops before its end"
    ),
    "pax size smaller than the data": Refused(
        lambda: tar(pax((b"size", b"0")), file(b"x", b"not a header")), "malformed", "checksum"
    ),
    "extension of 2^62 bytes": Refused(
        lambda: tar(header(b"x", flag=b"x", size=base256(1 << 62))), "limit", "extended"
    ),
    # -- extensions
    "pax header of a gigabyte": Refused(lambda: Endless(a_gigabyte(b"x")), "limit", "extended"),
    "global header of a gigabyte": Refused(lambda: Endless(a_gigabyte(b"g")), "limit", "extended"),
    "long name of a gigabyte": Refused(lambda: Endless(a_gigabyte(b"L")), "limit", "extended"),
    "long link of a gigabyte": Refused(lambda: Endless(a_gigabyte(b"K")), "limit", "extended"),
    "pax headers without end": Refused(
        lambda: Endless(itertools.repeat(pax((b"comment", b"!")))), "limit", "extended"
    ),
    "global headers without end": Refused(
        lambda: Endless(itertools.repeat(pax((b"comment", b"!"), flag=b"g"))), "limit", "extended"
    ),
    "global header that names": Refused(
        lambda: tar(pax((b"path", b"a"), flag=b"g"), X, X), "malformed", "global"
    ),
    "headers larger than all they describe": Refused(
        lambda: tar(*(pax((b"comment", b"!" * 900_000)) + file(b"f%d" % n) for n in range(9))),
        "limit",
        "longer than its content may be",
        Caps(bytes=1000, entries=100),
    ),
    "pax record longer than its header": Refused(
        lambda: tar(file(b"pax", b"999 path=x\n", flag=b"x"), X), "malformed", "pax"
    ),
    "pax record of length 0": Refused(
        lambda: tar(file(b"pax", b"0 path=x\n", flag=b"x"), X), "malformed", "pax"
    ),
    "pax record without an end": Refused(
        lambda: tar(file(b"pax", b"9 path=xy", flag=b"x"), X), "malformed", "pax"
    ),
    "pax name with a NUL": Refused(lambda: tar(pax((b"path", b"a\0/../b")), X), "malformed", "NUL"),
    "pax link with a NUL": Refused(
        lambda: tar(pax((b"linkpath", b"a\0b")), symlink(b"l", b"x")), "malformed", "NUL"
    ),
    "extension without a member": Refused(
        lambda: tar(pax((b"path", b"a"))), "malformed", "without a member"
    ),
    # -- sparse maps
    "sparse map that overlaps": Refused(
        lambda: tar(old_sparse(b"s", bytes(1024), [(0, 512), (256, 512)], 4096)),
        "malformed",
        "sparse map",
    ),
    "sparse map out of order": Refused(
        lambda: tar(old_sparse(b"s", bytes(1024), [(2048, 512), (0, 512)], 4096)),
        "malformed",
        "sparse map",
    ),
    "sparse map past the end": Refused(
        lambda: tar(old_sparse(b"s", bytes(512), [(4096, 512)], 4096)), "malformed", "sparse map"
    ),
    "sparse map past 2^63": Refused(
        lambda: tar(
            pax(*sparse_records([((1 << 63) - 1, 512)], (1 << 63) - 1)), file(b"s", bytes(512))
        ),
        "malformed",
        "sparse map",
    ),
    "sparse map shorter than its data": Refused(
        lambda: tar(old_sparse(b"s", bytes(1024), [(0, 512)], 4096)), "malformed", "sparse map"
    ),
    "sparse file of an exabyte": Refused(
        lambda: tar(pax(*sparse_records([(0, 512)], 1 << 60)), file(b"s", bytes(512))),
        "limit",
        "bytes",
    ),
    "sparse map that never ends": Refused(
        lambda: Endless(
            itertools.chain(
                [header(b"s", flag=b"S", magic=GNU, tail=bytes(137) + b"\1" + octal(9, 12))],
                itertools.repeat(bytes(504) + b"\1" + bytes(7)),
            )
        ),
        "malformed",
        "sparse map",
    ),
    "sparse map of a billion pieces": Refused(
        lambda: tar(sparse_at_the_front(b"1000000000\n0\n1\n", bytes(512), 4096)),
        "limit",
        "pieces",
    ),
    "sparse map that is text": Refused(
        lambda: tar(sparse_at_the_front(b"one\n0\n1\n", bytes(512), 4096)), "malformed", "numbers"
    ),
    "sparse map larger than its member": Refused(
        lambda: tar(sparse_at_the_front(b"400\n" + b"0\n0\n" * 100, b"", 4096), *([X] * 4)),
        "malformed",
        "map",
    ),
    "sparse file of an unknown version": Refused(
        lambda: tar(
            pax((b"GNU.sparse.major", b"2"), (b"GNU.sparse.size", b"1")), file(b"s", bytes(512))
        ),
        "malformed",
        "version",
    ),
    # -- too many, too long, too deep
    "a million entries": Refused(
        lambda: Endless(one_entry_after_the_other(1_000_000)),
        "limit",
        "more than 5000 entries",
        Caps(entries=5000),
    ),
    "directories that no entry names": Refused(
        lambda: tar(*(file(b"%d/" % n + b"a/" * 30 + b"f") for n in range(50))),
        "limit",
        "more than 1000 entries",
        Caps(entries=1000),
    ),
    "name of 10 kB": Refused(lambda: tar(long(b"a" * 10_000), X), "limit", "longer than"),
    "part of a name of 300 bytes": Refused(
        lambda: tar(pax((b"path", b"d/" + b"a" * 300)), X), "limit", "longer than 255"
    ),
    "depth of 10,000": Refused(lambda: tar(pax((b"path", DEEP)), X), "limit", "longer than"),
    "depth of 300": Refused(lambda: tar(long(b"d/" * 300 + b"f"), X), "limit", "deeper than 256"),
    "symlink to 10 kB": Refused(
        lambda: tar(long(b"a" * 10_000, b"K"), symlink(b"l", b"x")), "limit", "too long"
    ),
    "attributes that no file has room for": Refused(
        lambda: tar(pax((b"SCHILY.xattr.user.big", b"v" * 100_000)), X), "limit", "user.big"
    ),
    # -- compression
    "gzip bomb in a file": Refused(
        lambda: zeros(header(b"x", size=base256(1 << 40)), 128 * MiB), "limit", "bytes"
    ),
    "gzip bomb after the end": Refused(
        lambda: zeros(tar(X), 128 * MiB), "limit", "longer than its content may be"
    ),
    "gzip cut short": Refused(
        lambda: gzip.compress(tar(X))[:-20], "malformed", "stops before its end"
    ),
    "gzip with a wrong sum": Refused(corrupt_gzip_sum, "malformed", "gzip"),
    "gzip with something behind it": Refused(
        lambda: gzip.compress(tar(X)) + b"garbage", "malformed", "gzip"
    ),
    "gzip in gzip": Refused(
        lambda: gzip.compress(gzip.compress(tar(X))), "malformed", "stops before|no tar"
    ),
    "bzip2 cut short": Refused(
        lambda: bz2.compress(tar(X))[:-20], "malformed", "stops before its end"
    ),
    "xz cut short": Refused(
        lambda: lzma.compress(tar(X))[:-20], "malformed", "stops before its end"
    ),
    "xz that wants gigabytes of memory": Refused(
        lambda: lzma.compress(
            tar(X), filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
        ),
        "malformed",
        "[Mm]emory",
    ),
    "zstd cut short": Refused(lambda: zstd(tar(X))[:-8], "malformed", "zstd"),
    "zstd of nonsense": Refused(
        lambda: b"\x28\xb5\x2f\xfd" + b"nonsense" * 99, "malformed", "zstd"
    ),
    # -- no archive
    "nothing at all": Refused(lambda: b"", "malformed", "empty"),
    "text": Refused(lambda: b"Hello, world!\n" * 500, "malformed", "no tar archive"),
    "a header cut short": Refused(lambda: X[:100], "malformed", "stops before its end"),
    "content cut short": Refused(
        lambda: file(b"x", bytes(9000))[:5000], "malformed", "stops before its end"
    ),
    "no end marker": Refused(lambda: X, "malformed", "stops before its end"),
    "wrong checksum": Refused(
        lambda: tar(X, header(b"y", checksum=b"000000\0 ")), "malformed", "checksum"
    ),
    "checksum that is text": Refused(
        lambda: tar(X, header(b"y", checksum=b"chksum\0 ")), "malformed", "checksum"
    ),
    "unknown type": Refused(lambda: tar(header(b"x", flag=b"Z")), "malformed", "type 'Z'"),
    "continued from another volume": Refused(
        lambda: tar(header(b"x", flag=b"M")), "malformed", "type 'M'"
    ),
    "no name": Refused(lambda: tar(header(b"")), "malformed", "without a name"),
    "link to nothing": Refused(lambda: tar(symlink(b"l", b"")), "malformed", "link to nothing"),
}

HARMLESS: dict[str, Harmless] = {
    "an absolute name counts from the target": Harmless(
        lambda: tar(file(b"/etc/passwd", b"root")),
        {"etc": "directory", "etc/passwd": "file root"},
    ),
    "an absolute name with many slashes": Harmless(
        lambda: tar(file(b"////tmp//.//f", b"!")), {"tmp": "directory", "tmp/f": "file !"}
    ),
    "symlinks may point anywhere": Harmless(
        lambda: tar(symlink(b"a", b"/"), symlink(b"b", b"../../.."), symlink(b"c", b"c")),
        {"a": "-> /", "b": "-> ../../..", "c": "-> c"},
    ),
    "a file in the place of a symlink does not follow it": Harmless(
        lambda: tar(symlink(b"a", b"../canary/kept"), file(b"a", b"inside")),
        {"a": "file inside"},
    ),
    "a directory in the place of a symlink does not follow it": Harmless(
        lambda: tar(symlink(b"a", b"../canary"), directory(b"a", mode=0o700), file(b"a/f", b"!")),
        {"a": "directory", "a/f": "file !"},
    ),
    "a symlink in the place of a directory removes only the directory": Harmless(
        lambda: tar(
            file(b"a/b/f", b"!"),
            symlink(b"a/b/up", b"../../../canary"),
            symlink(b"a", b"../canary"),
        ),
        {"a": "-> ../canary"},
    ),
    "a hard link to a symlink is another name of the symlink": Harmless(
        lambda: tar(symlink(b"a", b"../canary/kept"), hard_link(b"h", b"a")),
        {"a": "-> ../canary/kept", "h": "-> ../canary/kept"},
    ),
    "a file through a hard link to a symlink replaces the name": Harmless(
        lambda: tar(symlink(b"a", b"../canary/kept"), hard_link(b"h", b"a"), file(b"h", b"!")),
        {"a": "-> ../canary/kept", "h": "file !"},
    ),
    "a file in the place of a hard link leaves the other name": Harmless(
        lambda: tar(X, hard_link(b"h", b"x"), file(b"h", b"other")),
        {"h": "file other", "x": "file inside"},
    ),
    "a hard link to itself": Harmless(lambda: tar(X, hard_link(b"x", b"x")), {"x": "file inside"}),
    "a file, then a directory, then a file": Harmless(
        lambda: tar(X, directory(b"x"), file(b"x/y", b"1"), file(b"x", b"again")),
        {"x": "file again"},
    ),
    "a directory twice keeps what is in it": Harmless(
        lambda: tar(directory(b"d"), file(b"d/f", b"!"), directory(b"d", mode=0o711)),
        {"d": "directory", "d/f": "file !"},
        modes={"d": 0o711},
    ),
    "devices and fifos are left out": Harmless(
        lambda: tar(
            header(b"null", flag=b"3", tail=b""),
            header(b"sda", flag=b"4"),
            header(b"fifo", flag=b"6"),
            header(b"dev/zero", flag=b"3"),
            X,
        ),
        {"x": "file inside"},
        skipped=4,
    ),
    "set-id bits are cleared, sticky ones are not": Harmless(
        lambda: tar(
            file(b"su", b"!", mode=0o6755),
            directory(b"sg", mode=0o2775),
            file(b"sg/f", b"!", mode=0o2644),
            directory(b"tmp", mode=0o1777),
        ),
        {"su": "file !", "sg": "directory", "sg/f": "file !", "tmp": "directory"},
        modes={"su": 0o755, "sg": 0o775, "sg/f": 0o644, "tmp": 0o1777},
    ),
    "a file that its owner may not write": Harmless(
        lambda: tar(pax((b"SCHILY.xattr.user.a", b"v")), file(b"ro", b"!", mode=0o400)),
        {"ro": "file !"},
        modes={"ro": 0o400},
    ),
    "links and directories have no body": Harmless(
        lambda: tar(
            X,
            directory(b"d", size=4096),
            symlink(b"s", b"x", size=512),
            hard_link(b"h", b"x", size=6),
        ),
        {"d": "directory", "h": "file inside", "s": "-> x", "x": "file inside"},
    ),
    "names that are no text": Harmless(
        lambda: tar(
            file(b"\xff\xfe", b"1"),
            file(b"a\nb", b"2"),
            file(b"-rf", b"3"),
            file(b"\x1b[31m", b"4"),
        ),
        {"\udcff\udcfe": "file 1", "a\nb": "file 2", "-rf": "file 3", "\x1b[31m": "file 4"},
    ),
    "the longest name there can be": Harmless(
        lambda: tar(long(b"n" * 255), X), {"n" * 255: "file inside"}
    ),
    "whiteouts": Harmless(
        lambda: tar(file(b"d/.wh.gone"), file(b".wh....", b"with content"), directory(b".wh.e")),
        {"...": "whiteout", "d": "directory", "d/gone": "whiteout", "e": "whiteout"},
    ),
    "a whiteout never hides its own layer": Harmless(
        lambda: tar(file(b".wh.a"), file(b"a", b"1"), file(b"b", b"2"), file(b".wh.b")),
        {"a": "file 1", "b": "file 2"},
    ),
    "the same whiteout twice": Harmless(
        lambda: tar(file(b".wh.a"), file(b".wh.a")), {"a": "whiteout"}
    ),
    "bookkeeping of other stores": Harmless(
        lambda: tar(
            file(b".wh..wh.aufs"), directory(b".wh..wh.plnk"), file(b".wh..wh.plnk/1.2", b"!"), X
        ),
        {"x": "file inside"},
    ),
    "something behind the end marker": Harmless(
        lambda: tar(X) + b"garbage" * 1000, {"x": "file inside"}
    ),
    "an archive with nothing in it": Harmless(lambda: END, {}),
    "a lone zero block": Harmless(lambda: X + bytes(512), {"x": "file inside"}),
    "a global header that says nothing of names": Harmless(
        lambda: tar(pax((b"comment", b"abc"), flag=b"g"), X), {"x": "file inside"}
    ),
    "members of gzip, one after the other": Harmless(
        lambda: gzip.compress(X) + gzip.compress(END) + bytes(700), {"x": "file inside"}
    ),
}


def zstd(data: bytes) -> bytes:
    done = subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True)
    return done.stdout


@dataclass(frozen=True, slots=True)
class Ground:
    target: Path
    canary: Path

    def outside(self) -> list[tuple[object, ...]]:
        """Everything beside the target that an escape would change."""
        seen: list[tuple[object, ...]] = []
        for path in sorted([self.canary.parent, self.canary, *self.canary.rglob("*")]):
            info = path.lstat()
            content = (
                path.read_bytes()
                if stat.S_ISREG(info.st_mode)
                else os.readlink(path)
                if stat.S_ISLNK(info.st_mode)
                else sorted(os.listdir(path))
            )
            seen.append(
                (
                    path,
                    info.st_mode,
                    info.st_uid,
                    info.st_nlink,
                    info.st_mtime_ns,
                    info.st_ctime_ns,
                    content,
                )
            )
        return seen


def children() -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == os.getpid():
            found.add(int(entry.parent.name))
    return found


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    canary = tmp_path / "canary"
    (canary / "below").mkdir(parents=True)
    (canary / "kept").write_text("as it was")
    (canary / "below" / "file").write_text("as it was")
    (canary / "link").symlink_to("kept")
    target = tmp_path / "target"
    target.mkdir()
    made = Ground(target, canary)
    before, running = made.outside(), children()
    descriptors = len(os.listdir("/proc/self/fd"))
    yield made
    assert made.outside() == before
    assert children() == running
    assert len(os.listdir("/proc/self/fd")) == descriptors
    # Whatever came of it, its owner can remove it.
    shutil.rmtree(target)


def opened(archive: bytes | Endless) -> BinaryIO:
    return cast("BinaryIO", io.BytesIO(archive) if isinstance(archive, bytes) else archive)


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name(ground: Ground, name: str):
    case = REFUSED[name]
    archive = case.archive()
    with pytest.raises(InvalidImage, match=case.words) as caught:
        unpack_layer(opened(archive), ground.target, caps=case.caps)
    assert caught.value.details["kind"] == case.kind
    assert caught.value.hint
    assert len(str(caught.value)) < 1000
    if isinstance(archive, Endless):
        assert archive.taken < case.most_read
    assert [kind for kind in tree(ground.target).values() if kind.startswith("something")] == []


@pytest.mark.parametrize("name", HARMLESS)
def test_it_comes_out_harmless(ground: Ground, name: str):
    case = HARMLESS[name]
    done = unpack_layer(opened(case.archive()), ground.target, caps=SMALL)
    assert tree(ground.target) == dict(sorted(case.left.items()))
    assert done.skipped == case.skipped
    for path, mode in case.modes.items():
        assert oct(stat.S_IMODE((ground.target / path).lstat().st_mode)) == oct(mode), path


def test_only_attributes_of_users_are_kept(ground: Ground):
    given = {
        b"user.note": b"kept",
        b"user.overlay.redirect": b"/etc",
        b"user.overlay.opaque": b"y",
        b"trusted.overlay.opaque": b"y",
        b"trusted.overlay.metacopy": b"",
        b"security.capability": b"\1\0\0\2\0\x20\0\0" + bytes(12),
        b"security.selinux": b"x",
        b"system.posix_acl_access": b"\2\0\0\0",
    }
    records = [(b"SCHILY.xattr." + key, value) for key, value in given.items()]
    archive = tar(
        pax(*records),
        file(b"f", b"!"),
        pax(*records),
        directory(b"d"),
        pax(*records),
        symlink(b"s", b"f"),
    )
    unpack_layer(opened(archive), ground.target)
    for name in ("f", "d"):
        path = ground.target / name
        assert {key: os.getxattr(path, key) for key in os.listxattr(path)} == {"user.note": b"kept"}
    assert os.listxattr(ground.target / "s", follow_symlinks=False) == []


def test_opaque_directories_are_marked_for_whoever_mounts_them(ground: Ground):
    unpack_layer(
        opened(
            tar(
                file(b".wh..wh..opq"),
                file(b"new/.wh..wh..opq"),
                directory(b"old"),
                file(b"old/f"),
                file(b"old/.wh..wh..opq"),
                # A directory in the place of a whiteout hides what the whiteout hid.
                file(b".wh.again"),
                directory(b"again"),
                file(b".wh.implied"),
                file(b"implied/f"),
                directory(b"before"),
                file(b".wh.before"),
                directory(b"plain"),
            )
        ),
        ground.target,
    )
    key = "trusted.overlay.opaque" if os.geteuid() == 0 else "user.overlay.opaque"
    marked = {
        path.name: os.getxattr(path, key)
        for path in [ground.target, *ground.target.iterdir()]
        if key in os.listxattr(path)
    }
    assert marked == dict.fromkeys(["target", "new", "old", "again", "implied", "before"], b"y")


def test_owners_past_the_range_of_a_sandbox_are_refused(ground: Ground):
    if os.geteuid() != 0:
        unpack_layer(opened(tar(file(b"f", uid=70_000, gid=70_000))), ground.target)
        assert (ground.target / "f").stat().st_uid == os.geteuid()
        return
    for refused in [
        file(b"f", uid=65_536),
        file(b"f", gid=65_536),
        pax((b"uid", b"4294967296")) + file(b"f"),
        pax((b"gid", b"4294967295")) + file(b"f"),
    ]:
        with pytest.raises(InvalidImage, match="past 65535"):
            unpack_layer(opened(tar(refused)), ground.target)
    unpack_layer(opened(tar(file(b"f", uid=65_535, gid=1))), ground.target)
    assert (ground.target / "f").stat().st_uid == 65_535


def test_a_record_counts_its_own_length():
    # The builder of these archives, not the program: a wrong one would test nothing.
    assert record(b"path", b"x" * 91) == b"101 path=" + b"x" * 91 + b"\n"
    assert record(b"a", b"b") == b"6 a=b\n"


@pytest.mark.root
@pytest.mark.timeout(300)
def test_an_ordinary_user_is_no_less_safe():
    home = Path(tempfile.mkdtemp(prefix="sku-", dir="/var/tmp"))
    try:
        home.chmod(0o755)
        own = home / "home"
        own.mkdir()
        os.chown(own, UID, UID)
        python, path = interpreter(home)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / "tests", home / "tests", ignore=ignored)
        shutil.copy(REPOSITORY / "pyproject.toml", home)
        ran = as_user(
            own,
            python,
            "-m",
            "pytest",
            "-q",
            f"--rootdir={home}",
            f"--config-file={home / 'pyproject.toml'}",
            f"--override-ini=cache_dir={own / 'cache'}",
            f"--basetemp={own / 'tmp'}",
            "--deselect",
            "tests/images/test_hostile_archives.py::test_an_ordinary_user_is_no_less_safe",
            str(home / "tests" / "images" / "test_hostile_archives.py"),
            pythonpath=f"{home}:{path}",
            timeout=240,
        )
        assert ran.returncode == 0, f"{ran.stdout[-20_000:]}\n{ran.stderr[-5_000:]}"
        assert f"{len(REFUSED) + len(HARMLESS) + 4} passed, 1 deselected" in ran.stdout
    finally:
        shutil.rmtree(home)
