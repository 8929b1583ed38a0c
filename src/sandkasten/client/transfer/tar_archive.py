"""Directory trees as tar streams, on the caller's machine.

`pack` reads a local tree; `unpack` writes one from a sandbox. That data is untrusted: no member is
written through a symbolic link, outside the destination, as a device or with set-id bits, and
nothing grows past the caller's limit. Links are created last, when no more data can pass through
them. Members that are left out are named. Tar works in a thread of its own, connected to the loop
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
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final

from sandkasten.errors import FileTrouble, PayloadTooLarge, ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

BLOCK: Final = 256 * 1024
# Only to stop a stream that never ends: a workspace holds far fewer.
MAX_ENTRIES: Final = 1_000_000
# Enough to see what kind of thing is left out; the rest is a number.
MAX_SKIPPED: Final = 1_000


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
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    work = loop.run_in_executor(None, _pack_into, theirs, source, tally)
    try:
        while data := await loop.sock_recv(ours, BLOCK):
            yield data
        await work
    finally:
        ours.close()
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


async def unpack(
    chunks: AsyncIterator[bytes], destination: Path, tally: Tally, *, max_bytes: int
) -> None:
    """Write a sandbox's tar stream below `destination`, which is created if missing."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    work = loop.run_in_executor(None, _unpack_from, theirs, destination, tally, max_bytes)
    try:
        # A thread that gave up closes its end; why it did is what `work` raises.
        with suppress(BrokenPipeError, ConnectionResetError):
            async for chunk in chunks:
                await loop.sock_sendall(ours, chunk)
            ours.shutdown(socket.SHUT_WR)
        await work
    finally:
        ours.close()
        with suppress(Exception):
            await asyncio.shield(work)


def _unpack_from(end: socket.socket, destination: Path, tally: Tally, max_bytes: int) -> None:
    try:
        destination.mkdir(parents=True, exist_ok=True)
        with end, end.makefile("rb", BLOCK) as source:
            with tarfile.open(fileobj=source, mode="r|") as tar:
                _Unpacker(destination, tally, max_bytes).take(tar)
            while source.read(BLOCK):
                pass  # What follows the end of the archive is padding.
    except tarfile.TarError as exc:
        raise ProtocolViolation(
            "the archive from the sandbox is not valid",
            hint="try the download again; the sandbox may have ended in the middle of it",
        ) from exc
    except OSError as exc:
        raise FileTrouble(
            f"writing the download failed: {exc.strerror or exc}",
            hint="check the free space and the permissions of the destination",
        ) from exc


class _Unpacker:
    """Writes members one by one, each opened from the destination downwards, never by a link."""

    def __init__(self, destination: Path, tally: Tally, max_bytes: int) -> None:
        self._root = destination
        self._tally = tally
        self._max_bytes = max_bytes
        self._links: list[tuple[list[str], str]] = []
        self._modes: list[tuple[list[str], int]] = []

    def take(self, tar: tarfile.TarFile) -> None:
        while (member := tar.next()) is not None:
            self._tally.entries += 1
            if self._tally.entries > MAX_ENTRIES:
                raise PayloadTooLarge(
                    f"the download has more than {MAX_ENTRIES} entries",
                    hint="download a part of the tree",
                )
            self._member(tar, member)
            # A stream is read once; keeping every header would be the sandbox's way to our memory.
            tar.members.clear()  # type: ignore[attr-defined]
        for parts, target in self._links:
            self._link(parts, target)
        for parts, mode in reversed(self._modes):
            self._set_mode(parts, mode)

    def _member(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if member.name.startswith("/") or ".." in parts or any("\0" in part for part in parts):
            self._tally.skip(member.name, "a name that leads outside")
        elif member.isdir():
            with _Directory(self._root, parts):
                self._modes.append((parts, member.mode))
        elif member.issym():
            if stays_inside(member.name, member.linkname):
                self._links.append((parts, member.linkname))
            else:
                self._tally.skip(member.name, "a link that leads outside")
        elif member.isreg() and parts:
            self._file(tar, member, parts)
        else:
            self._tally.skip(member.name, "neither a file, a directory nor a link")

    def _file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, parts: list[str]) -> None:
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
        with (
            content,
            _Directory(self._root, parts[:-1]) as parent,
            parent.create(parts[-1], member.mode) as file,
        ):
            shutil.copyfileobj(content, file, BLOCK)
        self._tally.files += 1

    def _link(self, parts: list[str], target: str) -> None:
        with _Directory(self._root, parts[:-1]) as parent:
            parent.clear(parts[-1])
            os.symlink(target, parent.path(parts[-1]), dir_fd=parent.fd)

    def _set_mode(self, parts: list[str], mode: int) -> None:
        # Last of all: a directory without write permission could not have been filled.
        with _Directory(self._root, parts) as directory:
            if directory.fd is not None:
                os.fchmod(directory.fd, mode & 0o777 | stat.S_IRWXU)


def write_below(root: Path, parts: list[str], data: bytes) -> None:
    """Write one file at a path that a sandbox named, below a given directory. OSError."""
    with _Directory(root, parts[:-1]) as parent, parent.create(parts[-1], 0o644) as file:
        file.write(data)


class _Directory:
    """A directory below the root, created if missing, reached without following a link."""

    def __init__(self, root: Path, parts: list[str]) -> None:
        self._path = root.joinpath(*parts)
        self.fd: int | None = None
        if os.open not in os.supports_dir_fd:
            self._path.mkdir(parents=True, exist_ok=True)
            return
        flags = os.O_RDONLY | os.O_DIRECTORY
        self.fd = os.open(root, flags)
        for part in parts:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=self.fd)
            try:
                below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=self.fd)
            finally:
                os.close(self.fd)
            self.fd = below

    def __enter__(self) -> _Directory:
        return self

    def __exit__(self, *_: object) -> None:
        if self.fd is not None:
            os.close(self.fd)

    def path(self, name: str) -> str:
        return name if self.fd is not None else str(self._path / name)

    def create(self, name: str, mode: int) -> IO[bytes]:
        """Create a file in place of whatever had the name."""
        self.clear(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        fd = os.open(self.path(name), flags, 0o600, dir_fd=self.fd)
        if hasattr(os, "fchmod"):
            os.fchmod(fd, mode & 0o777)
        return os.fdopen(fd, "wb")

    def clear(self, name: str) -> None:
        """Remove an old file or link; an old directory is an error."""
        with suppress(FileNotFoundError):
            os.unlink(self.path(name), dir_fd=self.fd)
