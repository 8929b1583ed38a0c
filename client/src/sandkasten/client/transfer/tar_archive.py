"""Directory trees as tar streams, on the caller's machine.

`pack` reads a local tree; `unpack` writes one from a sandbox. That data is untrusted: no member is
written through a symbolic link, outside the destination, as a device or with set-id bits, and
nothing grows past the caller's limit. Links are created last, when no more data can pass through
them. Members that are left out are named. Tar works in its own thread, connected to the loop
by a socket pair: closing the loop's end stops the thread.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import tarfile
from contextlib import suppress
from dataclasses import field
from fnmatch import fnmatchcase
from typing import IO, TYPE_CHECKING, Final, cast

from sandkasten.errors import (
    FileTrouble,
    InvalidRequest,
    PayloadTooLarge,
    ProtocolViolation,
    SandkastenError,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable
    from pathlib import Path

BLOCK: Final = 256 * 1024
# Only to stop a stream that never ends: a workspace holds far fewer.
MAX_ENTRIES: Final = 1_000_000
# Enough to see what kind of thing is left out; the rest is a number.
MAX_SKIPPED: Final = 1_000
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)


@dataclass(slots=True)
class Tally:
    """What was moved so far; read it when the transfer has ended."""

    files: int = 0
    entries: int = 0
    bytes: int = 0
    skipped: list[str] = field(default_factory=list)

    def skip(self, name: str, reason: str) -> None:
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped.append(f"{name}: {reason}")
        elif len(self.skipped) == MAX_SKIPPED:
            self.skipped.append("and more")


def stays_inside(link: str, target: str) -> bool:
    """Return whether a symlink at `link` (relative) stays below the tree's root.

    Only `..` at the start of a target is allowed: after a name it could climb out of where another
    link leads.
    """
    if not target or target.startswith("/"):
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    depth = len([part for part in link.split("/")[:-1] if part not in ("", ".")])
    return ups <= depth and ".." not in parts[ups:]


async def pack(source: Path, tally: Tally) -> AsyncGenerator[bytes]:
    """Yield the contents of a directory as a tar stream; member names are relative to it."""
    loop = asyncio.get_running_loop()
    receiver, sender = socket.socketpair()
    receiver.setblocking(False)
    work = loop.run_in_executor(None, _pack_into, sender, source, tally)
    try:
        while data := await loop.sock_recv(receiver, BLOCK):
            yield data
        await work
    finally:
        receiver.close()
        with suppress(OSError):
            await asyncio.shield(work)


def _pack_into(end: socket.socket, source: Path, tally: Tally) -> None:
    with (
        end,
        end.makefile("wb", BLOCK) as out,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        _add_tree(tar, source, tally)


def _add_tree(tar: tarfile.TarFile, source: Path, tally: Tally) -> None:
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        with os.scandir(source / directory) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
        for entry in entries:
            name = f"{directory}/{entry.name}" if directory else entry.name
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode) and not stays_inside(name, os.readlink(entry.path)):
                tally.skip(name, "a link that leads outside")
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                tally.skip(name, "neither a file, a directory nor a link")
                continue
            _add(tar, entry.path, name, tally)
            if stat.S_ISDIR(mode):
                waiting.append(name)


def _add(tar: tarfile.TarFile, path: str, name: str, tally: Tally) -> None:
    member = tar.gettarinfo(path, arcname=name)
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    tally.entries += 1
    if member.islnk():
        # Two names of one file: sent twice, because a sandbox need not take hard links.
        member.type, member.linkname = tarfile.REGTYPE, ""
        member.size = os.stat(path).st_size
    if member.isreg():
        with open(path, "rb") as file:
            tar.addfile(member, file)
        tally.files += 1
        tally.bytes += member.size
    else:
        tar.addfile(member)


class Exclusions:
    """Paths of a tree to leave out: names, or paths from the root, with `*`, `?` and `[…]`."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._names: list[str] = []
        self._paths: list[list[str]] = []
        if isinstance(patterns, str):
            raise InvalidRequest("exclude must be a list", hint=f"give [{shown(patterns)}]")
        for pattern in patterns:
            parts = _parts(pattern)
            if not parts or ".." in parts:
                raise InvalidRequest(
                    f"{shown(pattern)} is not a valid exclusion",
                    hint="a name (`*.pyc`), or a path from the root of the tree (`/build/cache`)",
                    field="exclude",
                )
            if "/" in pattern.rstrip("/"):
                self._paths.append(parts)
            else:
                self._names += parts

    def __bool__(self) -> bool:
        return bool(self._names or self._paths)

    def cover(self, name: str) -> bool:
        """Return whether a path, or a directory above it, is left out."""
        parts = _parts(name)
        if any(fnmatchcase(part, pattern) for part in parts for pattern in self._names):
            return True
        return any(
            len(patterns) <= len(parts) and all(map(fnmatchcase, parts, patterns))
            for patterns in self._paths
        )


class _CountedFile:
    """A file to write to that need not be seekable."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0

    def write(self, data: bytes) -> int:
        self.size += len(data)
        return self._file.write(data)


def copy_without(source: IO[bytes], file: IO[bytes], exclude: Exclusions) -> int:
    """Copy a tar of a sandbox without the excluded members, and return the size of the copy."""
    counted = _CountedFile(file)
    sink = cast("IO[bytes]", counted)
    try:
        with (
            tarfile.open(fileobj=source, mode="r|") as tar,
            tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as copy,
        ):
            while (member := tar.next()) is not None:
                if not exclude.cover(member.name):
                    copy.addfile(member, tar.extractfile(member) if member.isreg() else None)
                tar.members.clear()  # type: ignore[attr-defined]
                copy.members.clear()  # type: ignore[attr-defined]
    except tarfile.TarError as exc:
        raise _invalid_archive() from exc
    return counted.size


async def unpack(
    chunks: AsyncIterator[bytes],
    destination: Path,
    tally: Tally,
    *,
    max_bytes: int,
    exclude: Exclusions | None = None,
) -> None:
    """Write a sandbox's tar stream below `destination`, which is created if missing."""
    unpacker = _Unpacker(destination, tally, max_bytes, exclude or Exclusions())
    loop = asyncio.get_running_loop()
    sender, receiver = socket.socketpair()
    sender.setblocking(False)
    work = loop.run_in_executor(None, _unpack_from, receiver, destination, unpacker)
    try:
        # A thread that gave up closes its end; why it did is what `work` raises.
        with suppress(BrokenPipeError, ConnectionResetError):
            async for chunk in chunks:
                await loop.sock_sendall(sender, chunk)
            sender.shutdown(socket.SHUT_WR)
        await work
    finally:
        sender.close()
        with suppress(Exception):
            await asyncio.shield(work)


def _unpack_from(end: socket.socket, destination: Path, unpacker: _Unpacker) -> None:
    try:
        destination.mkdir(parents=True, exist_ok=True)
        with end, end.makefile("rb", BLOCK) as source:
            with tarfile.open(fileobj=source, mode="r|") as tar:
                unpacker.take(tar)
            while source.read(BLOCK):
                pass  # What follows the end of the archive is padding.
    except tarfile.TarError as exc:
        raise _invalid_archive() from exc
    except SandkastenError:
        raise
    except OSError as exc:
        raise FileTrouble(
            f"writing the download failed: {exc.strerror or exc}",
            hint="check the free space and the permissions of the destination",
        ) from exc


def _invalid_archive() -> ProtocolViolation:
    return ProtocolViolation(
        "the archive from the sandbox is not valid",
        hint="try the download again; the sandbox may have ended in the middle of it",
    )


class _Unpacker:
    """Writes members one by one, each in a directory that was reached without following a link."""

    def __init__(
        self, destination: Path, tally: Tally, max_bytes: int, exclude: Exclusions
    ) -> None:
        self._destination = destination
        self._tally = tally
        self._max_bytes = max_bytes
        self._exclude = exclude
        self._links: list[tuple[str, str]] = []

    def take(self, tar: tarfile.TarFile) -> None:
        with _Directory(self._destination) as directory:
            while (member := tar.next()) is not None:
                self._tally.entries += 1
                if self._tally.entries > MAX_ENTRIES:
                    raise PayloadTooLarge(
                        f"the download has more than {MAX_ENTRIES} entries",
                        hint="download a part of the tree",
                    )
                if not self._exclude.cover(member.name):
                    self._member(tar, member, directory)
                # A stream is read once; keeping every header would be the sandbox's way to our
                # memory.
                tar.members.clear()  # type: ignore[attr-defined]
            for name, target in self._links:
                parts = _parts(name)
                directory.enter(parts[:-1])
                directory.link(parts[-1], target)

    def _member(self, tar: tarfile.TarFile, member: tarfile.TarInfo, directory: _Directory) -> None:
        parts = _parts(member.name)
        if member.name.startswith("/") or ".." in parts or "\0" in member.name:
            self._tally.skip(member.name, "a name that leads outside")
        elif member.isdir():
            directory.enter(parts)
            directory.set_mode(member.mode)
        elif member.issym():
            if parts and stays_inside(member.name, member.linkname):
                self._links.append((member.name, member.linkname))
            else:
                self._tally.skip(member.name, "a link that leads outside")
        elif member.isreg() and parts:
            directory.enter(parts[:-1])
            self._file(tar, member, directory, parts[-1])
        else:
            self._tally.skip(member.name, "neither a file, a directory nor a link")

    def _file(
        self, tar: tarfile.TarFile, member: tarfile.TarInfo, directory: _Directory, name: str
    ) -> None:
        self._tally.bytes += member.size
        if self._tally.bytes > self._max_bytes:
            raise PayloadTooLarge(
                f"the download is larger than {self._max_bytes} bytes",
                hint="raise max_bytes, or download a part of the tree",
            )
        content = tar.extractfile(member)
        if content is None:
            self._tally.skip(member.name, "no content")
            return
        with content, directory.create(name, member.mode) as file:
            shutil.copyfileobj(content, file, BLOCK)
            keep_time(file, member.mtime)
        self._tally.files += 1


def keep_time(file: IO[bytes], mtime: float) -> None:
    """Set the modification time of a regular file after its last byte was written.

    The time is the sandbox's: one that this system cannot store is left out.
    """
    file.flush()
    if os.utime in os.supports_fd and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        with suppress(OverflowError, ValueError, OSError):
            os.utime(file.fileno(), (mtime, mtime))


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def write_below(root: Path, parts: list[str], data: bytes) -> None:
    """Write one file at a path that a sandbox named, below a given directory. OSError."""
    with _Directory(root) as directory:
        directory.enter(parts[:-1])
        with directory.create(parts[-1], 0o644) as file:
            file.write(data)


class _Directory:
    """The current directory of a tree, entered without following a link.

    A member is mostly near the one before it, so the way between them is short, and a tree of any
    depth costs a few calls for each member. Only the root and the current directory are open.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: list[str] = []
        self._above: list[tuple[int, int]] = []
        self._fd = os.open(root, _FLAGS) if os.open in os.supports_dir_fd else None

    def __enter__(self) -> _Directory:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def enter(self, parts: list[str]) -> None:
        """Go to the directory at `parts` below the root, created if missing."""
        if self._fd is None:
            self._root.joinpath(*parts).mkdir(parents=True, exist_ok=True)
            self._names = parts
            return
        shared = _shared(self._names, parts)
        while len(self._names) > shared:
            self._up(self._fd)
        for part in parts[len(self._names) :]:
            self._down(self._fd, part)

    def _down(self, fd: int, name: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=fd)
        here = os.fstat(fd)
        self._fd = os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=fd)
        os.close(fd)
        self._names.append(name)
        self._above.append((here.st_dev, here.st_ino))

    def _up(self, fd: int) -> None:
        """Go to the parent, or back to the root if `..` is not the parent that we came from."""
        self._fd = os.open("..", _FLAGS, dir_fd=fd)
        os.close(fd)
        self._names.pop()
        here = os.fstat(self._fd)
        if self._above.pop() != (here.st_dev, here.st_ino):
            os.close(self._fd)
            self._fd = os.open(self._root, _FLAGS)
            self._names, self._above = [], []

    def set_mode(self, mode: int) -> None:
        # Always open to its owner: otherwise it could not be filled.
        if self._fd is not None:
            os.fchmod(self._fd, mode & 0o777 | stat.S_IRWXU)

    def create(self, name: str, mode: int) -> IO[bytes]:
        """Create a file in place of whatever had the name."""
        self._clear(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        fd = os.open(self._path(name), flags, 0o600, dir_fd=self._fd)
        if hasattr(os, "fchmod"):
            os.fchmod(fd, mode & 0o777)
        return os.fdopen(fd, "wb")

    def link(self, name: str, target: str) -> None:
        self._clear(name)
        os.symlink(target, self._path(name), dir_fd=self._fd)

    def _clear(self, name: str) -> None:
        """Remove an old file or link; an old directory is an error."""
        with suppress(FileNotFoundError):
            os.unlink(self._path(name), dir_fd=self._fd)

    def _path(self, name: str) -> str:
        return name if self._fd is not None else str(self._root.joinpath(*self._names, name))


def _shared(names: list[str], other: list[str]) -> int:
    """Return how many names both begin with."""
    least = min(len(names), len(other))
    if names[:least] == other[:least]:
        return least
    return next(at for at in range(least) if names[at] != other[at])
