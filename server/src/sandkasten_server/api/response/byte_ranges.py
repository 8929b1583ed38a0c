"""Ranges and validators of files, by the rules of RFC 9110. Pure.

A file is identified by its size and the second of its last change. Within that second it can change
unseen, so until it is over the tag is weak, and no download is resumed with it.
"""

from __future__ import annotations

import os
import re
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

_ONE_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,19})-([0-9]{0,19})[ \t]*\Z")
_TAG = re.compile(r'(?:W/)?"[^"]*"')
# Between our clock's second and the file system's.
_SETTLED_S = 2.0


@dataclass(frozen=True, slots=True)
class Span:
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class FileVersion:
    """One state of a file."""

    size: int
    mtime: int
    strong: bool

    @classmethod
    def of(cls, size: int, mtime: int, now: float) -> FileVersion:
        return cls(size, mtime, strong=now - mtime > _SETTLED_S)

    @property
    def tag(self) -> str:
        return ("" if self.strong else "W/") + f'"{self.size:x}-{self.mtime & (2**64 - 1):x}"'

    @property
    def headers(self) -> dict[str, str]:
        fields = {"ETag": self.tag, "Accept-Ranges": "bytes"}
        if 0 <= self.mtime < 2**37:
            fields["Last-Modified"] = formatdate(self.mtime, usegmt=True)
        return fields

    def unchanged(self, headers: Mapping[str, str]) -> bool:
        """Return whether the client already has this version (304)."""
        tags = headers.get("if-none-match")
        if tags is None:
            return False
        if tags.strip() == "*":
            return True
        bare = self.tag.removeprefix("W/")
        return any(tag.removeprefix("W/") == bare for tag in _TAG.findall(tags))


class Unsatisfiable(Exception):
    """The range starts after the end of the file (416)."""


def wanted(headers: Mapping[str, str], version: FileVersion) -> Span | None:
    """Return the requested range; None for the whole file, also for an unknown kind of range."""
    header = headers.get("range")
    if header is None or not _still(headers.get("if-range"), version):
        return None
    match = _ONE_RANGE.match(header.strip())
    if match is None or match[1] == match[2] == "":
        return None
    size = version.size
    if match[1] == "":
        count = min(int(match[2]), size)
        if count == 0:
            raise Unsatisfiable
        return Span(size - count, count)
    first = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < first:
        return None
    if first >= size:
        raise Unsatisfiable
    return Span(first, last - first + 1)


def disposition(name: str) -> str:
    """Return a header that makes it an attachment: files of a sandbox are never shown as pages."""
    raw = os.fsencode(name)
    plain = "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or byte in b"._- ") else "_"
        for byte in raw
    )
    value = f'attachment; filename="{plain[:200] or "file"}"'
    try:
        exact = quote(raw.decode(), safe="")
    except UnicodeDecodeError:
        return value
    return f"{value}; filename*=UTF-8''{exact}"


def _still(condition: str | None, version: FileVersion) -> bool:
    if condition is None:
        return True
    if not version.strong:
        return False
    if condition.startswith(('"', "W/")):
        return condition == version.tag
    try:
        return int(parsedate_to_datetime(condition).timestamp()) == version.mtime
    except (ValueError, TypeError, OverflowError):
        return False
