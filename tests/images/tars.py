"""Archives built byte by byte, as no ordinary program writes them, and trees as plain values."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 512
END = bytes(2 * BLOCK)
USTAR = b"ustar\x0000"
GNU = b"ustar  \x00"


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def octal(value: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, value)


def base256(value: int, width: int = 12) -> bytes:
    """Encode a number that octal digits cannot hold, as GNU tar does."""
    field = bytearray(value.to_bytes(width, "big", signed=True))
    field[0] |= 0x80
    return bytes(field)


def header(
    name: bytes,
    *,
    flag: bytes = b"0",
    size: int | bytes = 0,
    mode: int = 0o644,
    uid: int | bytes = 0,
    gid: int | bytes = 0,
    mtime: int | bytes = 1_000_000_000,
    target: bytes = b"",
    magic: bytes = USTAR,
    tail: bytes = b"",
    checksum: bytes | None = None,
) -> bytes:
    """`tail` is the content from offset 345 on: a prefix, or GNU's sparse fields."""

    def field(value: int | bytes, width: int) -> bytes:
        return value if isinstance(value, bytes) else octal(value, width)

    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[100:108] = octal(mode, 8)
    block[108:116] = field(uid, 8)
    block[116:124] = field(gid, 8)
    block[124:136] = field(size, 12)
    block[136:148] = field(mtime, 12)
    block[148:156] = b" " * 8
    block[156:157] = flag
    block[157 : 157 + len(target)] = target
    block[257:265] = magic
    block[345 : 345 + len(tail)] = tail
    assert len(block) == BLOCK, "a field is longer than its place"
    block[148:156] = checksum if checksum is not None else b"%06o\0 " % sum(block)
    return bytes(block)


def file(name: bytes, data: bytes = b"", **fields) -> bytes:
    fields.setdefault("size", len(data))
    return header(name, **fields) + padded(data)


def directory(name: bytes, **fields) -> bytes:
    fields.setdefault("mode", 0o755)
    return header(name, flag=b"5", **fields)


def symlink(name: bytes, target: bytes, **fields) -> bytes:
    return header(name, flag=b"2", target=target, mode=0o777, **fields)


def hard_link(name: bytes, target: bytes, **fields) -> bytes:
    return header(name, flag=b"1", target=target, **fields)


def record(key: bytes, value: bytes) -> bytes:
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if length != rest + len(str(length)):
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def pax(*records: tuple[bytes, bytes], flag: bytes = b"x") -> bytes:
    return file(b"pax", b"".join(record(*pair) for pair in records), flag=flag)


def long(name: bytes, flag: bytes = b"L") -> bytes:
    return file(b"././@LongLink", name + b"\0", flag=flag, magic=GNU)


def old_sparse(
    name: bytes, data: bytes, extents: list[tuple[int, int]], real_size: int, **fields
) -> bytes:
    """GNU's first kind: four extents in the header, the others in blocks behind it."""
    pairs = [octal(offset, 12) + octal(length, 12) for offset, length in extents]
    blocks = [pairs[at : at + 21] for at in range(4, len(pairs), 21)]
    tail = bytes(41) + b"".join(pairs[:4]).ljust(96, b"\0") + (b"\1" if blocks else b"\0")
    more = b""
    for index, block in enumerate(blocks, 1):
        more += b"".join(block).ljust(504, b"\0") + (b"\1" if index < len(blocks) else b"\0")
        more = padded(more)
    tail += octal(real_size, 12)
    fields.setdefault("size", len(data))
    return header(name, flag=b"S", magic=GNU, tail=tail, **fields) + more + padded(data)


def sparse_records(extents: list[tuple[int, int]], size: int) -> list[tuple[bytes, bytes]]:
    """Version 0.0 of the pax kind."""
    records = [(b"GNU.sparse.size", b"%d" % size), (b"GNU.sparse.numblocks", b"%d" % len(extents))]
    for offset, length in extents:
        records += [(b"GNU.sparse.offset", b"%d" % offset)]
        records += [(b"GNU.sparse.numbytes", b"%d" % length)]
    return records


def tree(root: Path) -> dict[str, str]:
    """Return every path below `root` with its kind, and its content or target."""
    return dict(_below(os.fsencode(root), b""))


def _below(root: bytes, path: bytes) -> Iterator[tuple[str, str]]:
    for name in sorted(os.listdir(os.path.join(root, path))):
        inner = os.path.join(path, name)
        full = os.path.join(root, inner)
        mode = os.lstat(full).st_mode
        shown = os.fsdecode(inner)
        if stat.S_ISDIR(mode):
            yield shown, "directory"
            yield from _below(root, inner)
        elif stat.S_ISLNK(mode):
            yield shown, "-> " + os.fsdecode(os.readlink(full))
        elif stat.S_ISREG(mode):
            with open(full, "rb") as opened:
                yield shown, "file " + os.fsdecode(opened.read(200))
        elif stat.S_ISCHR(mode) and os.lstat(full).st_rdev == 0:
            yield shown, "whiteout"
        else:
            yield shown, f"something else: {mode:o}"
