"""Hostile archives that must be refused, with the expected error."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma

from sandkasten_runtime.images.layers.layer_unpack import Caps
from tests.images.hostile import (
    DEEP,
    Endless,
    MiB,
    Refused,
    X,
    a_gigabyte,
    corrupt_gzip_sum,
    one_entry_after_the_other,
    sparse_at_the_front,
    tar,
    zeros,
    zstd,
)
from tests.images.tars import (
    GNU,
    base256,
    directory,
    file,
    hard_link,
    header,
    long,
    octal,
    old_sparse,
    pax,
    sparse_records,
    symlink,
)

REFUSED: dict[str, Refused] = {
    # -- names that lead upwards
    "dot dot": Refused(lambda: tar(file(b"../canary/new", b"!")), "hostile", "contains '..'"),
    "dot dot in the middle": Refused(
        lambda: tar(directory(b"a"), file(b"a/../../canary/new", b"!")), "hostile", "contains '..'"
    ),
    "dot dot alone": Refused(lambda: tar(directory(b"..", mode=0)), "hostile", "contains '..'"),
    "dot dot at the end": Refused(lambda: tar(directory(b"a/..")), "hostile", "contains '..'"),
    "dot dot behind a slash": Refused(
        lambda: tar(file(b"/../canary/new", b"!")), "hostile", "contains '..'"
    ),
    "dot dot in the prefix": Refused(
        lambda: tar(file(b"new", b"!", tail=b"../canary")), "hostile", "contains '..'"
    ),
    "dot dot by pax": Refused(
        lambda: tar(pax((b"path", b"../canary/new")), X), "hostile", "contains '..'"
    ),
    "dot dot by a long name": Refused(
        lambda: tar(long(b"../canary/new"), X), "hostile", "contains '..'"
    ),
    "dot dot as a symlink": Refused(
        lambda: tar(symlink(b"../canary/new", b"/")), "hostile", "contains '..'"
    ),
    "dot dot as a device": Refused(
        lambda: tar(header(b"../canary/new", flag=b"3")), "hostile", "contains '..'"
    ),
    "the root as a file": Refused(lambda: tar(file(b"./", b"!")), "malformed", "type '0'"),
    "the root as a symlink": Refused(lambda: tar(symlink(b".", b"/")), "hostile", "root"),
    # -- symlinks, and members behind them
    "file behind a symlink": Refused(
        lambda: tar(symlink(b"a", b"../canary"), file(b"a/new", b"!")), "hostile", "not a directory"
    ),
    "file behind a symlink to /": Refused(
        lambda: tar(symlink(b"a", b"/"), file(b"a/tmp/new", b"!")), "hostile", "not a directory"
    ),
    "file behind a symlink to ..": Refused(
        lambda: tar(symlink(b"a", b".."), file(b"a/canary/new", b"!")), "hostile", "not a directory"
    ),
    "file behind a symlink inside": Refused(
        lambda: tar(directory(b"real"), symlink(b"a", b"real"), file(b"a/new", b"!")),
        "hostile",
        "not a directory",
    ),
    "file behind a chain of symlinks": Refused(
        lambda: tar(symlink(b"c", b".."), symlink(b"b", b"c"), symlink(b"a", b"b"), file(b"a/x")),
        "hostile",
        "not a directory",
    ),
    "directory turned symlink, then a child": Refused(
        lambda: tar(
            directory(b"a"), file(b"a/x", b"1"), symlink(b"a", b"../canary"), file(b"a/x", b"2")
        ),
        "hostile",
        "not a directory",
    ),
    "symlink deep inside a path": Refused(
        lambda: tar(symlink(b"a/b/c", b"../../../canary"), file(b"a/b/c/d/new", b"!")),
        "hostile",
        "not a directory",
    ),
    "whiteout behind a symlink": Refused(
        lambda: tar(symlink(b"a", b"../canary"), file(b"a/.wh.kept")), "hostile", "not a directory"
    ),
    "opaque marker behind a symlink": Refused(
        lambda: tar(symlink(b"a", b"../canary"), file(b"a/.wh..wh..opq")), "hostile", "not a dir"
    ),
    "hard link behind a symlink": Refused(
        lambda: tar(X, symlink(b"a", b"../canary"), hard_link(b"a/new", b"x")),
        "hostile",
        "not a dir",
    ),
    "child of a file": Refused(lambda: tar(X, file(b"x/y")), "hostile", "not a directory"),
    # -- hard links
    "hard link outside": Refused(
        lambda: tar(hard_link(b"h", b"../canary/kept")), "hostile", "contains '..'"
    ),
    "hard link to an absolute path": Refused(
        lambda: tar(hard_link(b"h", b"/etc/passwd")), "hostile", "not a file of this layer"
    ),
    "hard link through a symlink": Refused(
        lambda: tar(symlink(b"a", b"../canary"), hard_link(b"h", b"a/kept")),
        "hostile",
        "not a file of this layer",
    ),
    "hard link by pax": Refused(
        lambda: tar(pax((b"linkpath", b"../canary/kept")), hard_link(b"h", b"x")),
        "hostile",
        "contains '..'",
    ),
    "hard link to a directory": Refused(
        lambda: tar(directory(b"d"), hard_link(b"h", b"d")), "hostile", "not a file of this layer"
    ),
    "hard link to the root": Refused(
        lambda: tar(hard_link(b"h", b"/")), "hostile", "not a file of this layer"
    ),
    "hard link to a whiteout": Refused(
        lambda: tar(file(b".wh.w"), hard_link(b"h", b"w")), "hostile", "not a file of this layer"
    ),
    "hard link in the place of its target's directory": Refused(
        lambda: tar(file(b"d/f", b"!"), hard_link(b"d", b"d/f")), "hostile", "not a file of this"
    ),
    "hard link to what comes later": Refused(
        lambda: tar(hard_link(b"h", b"x"), X), "hostile", "not a file of this layer"
    ),
    # -- whiteouts
    "whiteout of ..": Refused(lambda: tar(file(b".wh...")), "hostile", "not a valid whiteout"),
    "whiteout of .": Refused(lambda: tar(file(b"a/.wh..")), "hostile", "not a valid whiteout"),
    "whiteout of nothing": Refused(lambda: tar(file(b".wh.")), "hostile", "not a valid whiteout"),
    "whiteout with a slash": Refused(lambda: tar(file(b".wh.a/b")), "hostile", "below a whiteout"),
    "whiteout of a path upwards": Refused(
        lambda: tar(file(b".wh.a/../../canary")), "hostile", "contains '..'"
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
        "longer than the limits of its content",
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
        lambda: zeros(tar(X), 128 * MiB), "limit", "longer than the limits of its content"
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
    "text": Refused(lambda: b"Hello, world!\n" * 500, "malformed", "not a tar archive"),
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
