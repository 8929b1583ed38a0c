"""The files of an image archive by name: members of a tar, or files of a directory.

Reads only: small files whole and bounded, large ones as a stream. A link inside an archive is
resolved inside it; a link in a directory is refused. Raises InvalidImage for what is missing or too
large.
"""

from __future__ import annotations

import io
import json
import os
import stat
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, cast

from sandkasten.errors import InvalidImage
from sandkasten_runtime.images.archives.tar_index import Member, plain

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_JSON_BYTES: Final = 4 * 1024 * 1024
MOST_LINKS: Final = 16


class Members(Protocol):
    def has(self, name: str) -> bool: ...
    def open(self, name: str) -> BinaryIO:
        """Open a regular file as a stream, which the caller closes."""
        ...

    def size(self, name: str) -> int: ...


class Section(io.RawIOBase):
    """Part of a file as a separate file; any number of them share one descriptor."""

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self._fd = fd
        self._at = offset
        self._end = offset + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._end - self._at)]
        if not view:
            return 0
        count = os.preadv(self._fd, [view], self._at)
        if count == 0:
            raise InvalidImage("the archive cannot be read: it is truncated", hint="get it again")
        self._at += count
        return count


def whole(fd: int) -> BinaryIO:
    """Read all of an open file, wherever its path leads by now."""
    return cast("BinaryIO", Section(fd, 0, os.fstat(fd).st_size))


class TarMembers:
    """Members of an uncompressed archive that stays open as `fd`, which the caller closes."""

    def __init__(self, fd: int, index: Iterable[Member]) -> None:
        self._fd = fd
        # The later one of two members with one name counts, as in every tar.
        self._index = {member.name: member for member in index if member.name}

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def size(self, name: str) -> int:
        return self._get(name).size

    def open(self, name: str) -> BinaryIO:
        member = self._get(name)
        return cast("BinaryIO", Section(self._fd, member.offset, member.size))

    def _get(self, name: str) -> Member:
        member = self._find(name)
        if member is None:
            raise missing(name)
        return member

    def _find(self, name: str) -> Member | None:
        """Find a member. Old versions of docker write equal layers once and link to them."""
        member = self._index.get(plain(name))
        for _ in range(MOST_LINKS):
            if member is None or not member.is_link:
                break
            member = self._index.get(member.leads_to)
        return member if member is not None and member.is_file else None


class DirectoryMembers:
    """Files of a directory that stays open as `fd`, which the caller closes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def has(self, name: str) -> bool:
        try:
            os.close(self._open(name))
        except InvalidImage:
            return False
        return True

    def size(self, name: str) -> int:
        fd = self._open(name)
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def open(self, name: str) -> BinaryIO:
        return os.fdopen(self._open(name), "rb", buffering=0)

    def _open(self, name: str) -> int:
        *parents, last = plain(name).split("/")
        here = os.dup(self._fd)
        try:
            for part in parents:
                inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                os.close(here)
                here = inner
            fd = os.open(
                last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here
            )
        except OSError as exc:
            raise missing(name) from exc
        finally:
            os.close(here)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise missing(name)
        return fd


def open_directory(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def read_json(members: Members, name: str) -> tuple[Any, bytes]:
    """Return the value and the bytes it was read from, for their digest."""
    if members.size(name) > MAX_JSON_BYTES:
        raise InvalidImage(
            f"the archive cannot be read: {name[:100]} is larger than {MAX_JSON_BYTES} bytes",
            hint="the archive is probably not an image archive",
        )
    with members.open(name) as file:
        data = b"".join(iter(lambda: file.read(MAX_JSON_BYTES), b""))
    try:
        return json.loads(data), data
    except (ValueError, RecursionError) as exc:
        raise InvalidImage(
            f"the archive cannot be read: {name[:100]} is not valid JSON", hint="get it again"
        ) from exc


def missing(name: str) -> InvalidImage:
    return InvalidImage(
        f"the archive cannot be read: it has no file {name[:100]!r}",
        hint="it is incomplete; get it again",
    )
