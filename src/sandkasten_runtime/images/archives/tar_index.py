"""Members of a tar archive and the position of their bytes, read header by header with bounds.

Only names, sizes, kinds and link targets are read; nothing is unpacked and nothing on disk is named
after a member. Our own code, because the archive must not decide how much memory its index takes.
Raises InvalidImage for input that is not a tar, is truncated or inconsistent.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from sandkasten.errors import InvalidImage
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK: Final = 512
MAX_MEMBERS: Final = 1_000_000
MAX_EXTENDED_BYTES: Final = 1024 * 1024
_REGULAR: Final = frozenset({b"0", b"\0", b"7"})
_HARD_LINK, _SYMLINK, _DIRECTORY = b"1", b"2", b"5"
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"L", b"K", b"x", b"g"


class Stream(Protocol):
    """Bytes in order; `skip` skips some, by seeking if possible."""

    def read(self, count: int) -> bytes: ...
    def skip(self, count: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Member:
    """`name` is relative and plain (no `.`, `..` or double slash); empty if it was not."""

    name: str
    kind: bytes
    offset: int
    size: int
    link: str = ""

    @property
    def is_file(self) -> bool:
        return self.kind in _REGULAR

    @property
    def is_link(self) -> bool:
        return self.kind in (_HARD_LINK, _SYMLINK)

    @property
    def leads_to(self) -> str:
        """Return the target of a link inside the archive; empty if it leads out of it."""
        if self.kind == _HARD_LINK:
            return plain(self.link)
        return plain(posixpath.join(posixpath.dirname(self.name), self.link))


def members(stream: Stream) -> Iterator[Member]:
    """Yield every member in order. Stopping early is fine."""
    at, count = 0, 0
    waiting: dict[str, str] = {}
    while True:
        header = stream.read(BLOCK)
        at += len(header)
        # Archives end with two blocks of zeros; some writers leave them out.
        if not header or header == bytes(BLOCK):
            if at <= BLOCK and not header:
                raise _bad("it is empty")
            return
        if len(header) < BLOCK:
            raise _bad("it is cut short")
        member = _member(header, at)
        count += 1
        if count > MAX_MEMBERS:
            raise _bad(f"it has more than {MAX_MEMBERS} members")
        padded = -(-member.size // BLOCK) * BLOCK
        if member.kind in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
            if member.size > MAX_EXTENDED_BYTES:
                raise _bad("an extended header is too large")
            body = _exactly(stream, padded)[: member.size]
            waiting |= _extended(member.kind, body)
        else:
            member, waiting = _with(member, waiting), {}
            padded = -(-member.size // BLOCK) * BLOCK
            yield member
            stream.skip(padded)
        at += padded


def plain(name: str) -> str:
    """Return a member's name as a plain relative path; empty if it leads elsewhere."""
    tidy = posixpath.normpath("./" + name.lstrip("/"))
    return "" if tidy == ".." or tidy.startswith("../") else tidy


def _member(header: bytes, offset: int) -> Member:
    stored = _number(header[148:156])
    counted = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if stored != counted:
        raise _bad("it is not a tar archive, or it is damaged")
    name = _text(header[:100])
    if header[257:262] == b"ustar" and header[257:265] != b"ustar  \0":
        prefix = _text(header[345:500])
        name = f"{prefix}/{name}" if prefix else name
    kind = header[156:157]
    has_body = kind not in (_HARD_LINK, _SYMLINK, b"3", b"4", _DIRECTORY, b"6")
    size = _number(header[124:136]) if has_body else 0
    return Member(plain(name), kind, offset, size, _text(header[157:257]))


def _with(member: Member, extended: dict[str, str]) -> Member:
    if not extended:
        return member
    size = member.size
    if "size" in extended and member.is_file:
        if not extended["size"].isascii() or not extended["size"].isdigit():
            raise _bad("the size of a member is invalid")
        size = int(extended["size"][:20])
    return replace(
        member,
        name=plain(extended["path"]) if "path" in extended else member.name,
        link=extended.get("linkpath", member.link),
        size=size,
    )


def _extended(kind: bytes, body: bytes) -> dict[str, str]:
    if kind == _LONG_NAME:
        return {"path": _text(body)}
    if kind == _LONG_LINK:
        return {"linkpath": _text(body)}
    fields: dict[str, str] = {}
    while body and kind == _PAX:
        length, space, _ = body.partition(b" ")
        if not space or not length.isdigit() or len(length) > 8:
            raise _bad("an extended header is invalid")
        end = int(length)
        if not len(length) + 2 < end <= len(body):
            raise _bad("an extended header is invalid")
        key, _, value = body[len(length) + 1 : end - 1].partition(b"=")
        fields[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        body = body[end:]
    return fields


def _number(field: bytes) -> int:
    """Parse octal digits, or binary where those are too short."""
    if field[:1] in (b"\x80", b"\xff"):
        value = int.from_bytes(field[1:], "big")
        if field[0] == 0xFF or value >= 1 << 62:
            raise _bad("a number in a header is invalid")
        return value
    digits = field.replace(b"\0", b" ").strip()
    if not digits:
        return 0
    try:
        return int(digits, 8)
    except ValueError as exc:
        raise _bad("it is not a tar archive, or it is damaged") from exc


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _exactly(stream: Stream, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise _bad("it is cut short")
    return data


def _bad(what: str) -> InvalidImage:
    return InvalidImage(
        f"the archive cannot be read: {what}", hint="get it again, or make it with docker save"
    )
