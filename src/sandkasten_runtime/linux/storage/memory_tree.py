"""The tree of a file system in memory (/tmp of a sandbox) as one file, and back.

Works by descriptors and follows no link. Owners, modes, times, hard links, symlinks, FIFOs, sparse
files and `user.*` attributes are kept; sockets are not. Ids are stored as they are inside. While it
is read, no process may change the tree; while it is restored, no code may run that could.
What is mounted in it is not part of it.

The tree is made by code of the user, and its processes are stopped while it is read: `save` has a
limit of bytes and of time.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import IO, TYPE_CHECKING, Any, Final

from sandkasten.errors import Busy, Cancelled, QuotaExceeded
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from threading import Event

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_BLOCK: Final = 1024 * 1024
# The longest name or short symlink, escaped, with owner, mode and time, is 2.5 KB.
_INODE_BYTES: Final = 4096
# All names of a tmpfs of 1 GiB (65536 inodes) take 3 s on a slow machine; its content is written at
# a rate that a slow disk has.
_NAMES_S: Final = 60.0
_BYTES_PER_S: Final = 32 * 1024 * 1024
# <linux/capability.h>
_CAPABILITIES_V3: Final = 0x2008_0522


@dataclass(slots=True)
class _Writer:
    out: IO[bytes]
    first_id: int
    stop: Event
    left: int
    """How many bytes may still be written."""
    deadline: float
    links: dict[int, int] = field(default_factory=dict)
    """The numbers of files with several names, by inode."""

    def write(self, data: bytes) -> None:
        self.check()
        self.left -= len(data)
        if self.left < 0:
            raise QuotaExceeded(
                "could not copy /tmp: its names, links and attributes take more than is kept",
                hint="remove files with long names and symlinks from /tmp",
                quota="tmp",
            )
        self.out.write(data)

    def check(self) -> None:
        _check(self.stop)
        if time.monotonic() > self.deadline:
            raise Busy(
                "could not copy /tmp: the sandbox would be stopped for too long",
                hint="remove files from /tmp, or retry when the disk has less to do",
            )

    def entry(self, kind: str, name: str, status: os.stat_result, **more: Any) -> None:
        line = {
            "kind": kind,
            "name": name,
            "mode": stat.S_IMODE(status.st_mode),
            "ids": [status.st_uid - self.first_id, status.st_gid - self.first_id],
            "time": status.st_mtime_ns,
            **more,
        }
        self.write(json.dumps(line).encode() + b"\n")

    def file(self, here: int, name: str, status: os.stat_result) -> None:
        more: dict[str, Any] = {}
        if status.st_nlink > 1:
            number = self.links.get(status.st_ino)
            if number is not None:
                return self.entry("link", name, status, number=number)
            number = self.links[status.st_ino] = len(self.links)
            more = {"number": number, "names": status.st_nlink}
        source = os.open(name, os.O_RDONLY | _FILE, dir_fd=here)
        try:
            extents = _extents(source, status.st_size)
            more |= {"size": status.st_size, "extents": extents, "attributes": _attributes(source)}
            self.entry("file", name, status, **more)
            for at, length in extents:
                os.lseek(source, at, os.SEEK_SET)
                while length:
                    block = os.read(source, min(length, _BLOCK))
                    if not block:
                        raise OSError(errno.EIO, "a file became shorter while it was copied")
                    self.write(block)
                    length -= len(block)
        finally:
            os.close(source)
        return None


def save(root: int, out: IO[bytes], first_id: int, stop: Event) -> None:
    """Write everything in a tmpfs, of which `root` is the root. Raise OSError, QuotaExceeded if
    that is more than the tmpfs can have, Busy if it takes too long, and Cancelled.
    """
    limits = os.fstatvfs(root)
    most = limits.f_blocks * limits.f_frsize + limits.f_files * _INODE_BYTES
    deadline = time.monotonic() + _NAMES_S + most / _BYTES_PER_S
    writer = _Writer(out, first_id, stop, most, deadline)
    here = os.dup(root)
    levels: list[list[str]] = []
    try:
        top = os.fstat(here)
        writer.entry("directory", "", top, attributes=_attributes(here))
        while True:
            below: list[str] = []
            for name in sorted(os.listdir(here)):
                writer.check()
                status = os.stat(name, dir_fd=here, follow_symlinks=False)
                if status.st_dev != top.st_dev:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    below.append(name)
                elif stat.S_ISREG(status.st_mode):
                    writer.file(here, name, status)
                elif stat.S_ISLNK(status.st_mode):
                    writer.entry("symlink", name, status, target=os.readlink(name, dir_fd=here))
                elif stat.S_ISFIFO(status.st_mode):
                    writer.entry("fifo", name, status)
            levels.append(below)
            while not levels[-1]:
                levels.pop()
                if not levels:
                    return
                writer.write(b'{"kind": "up"}\n')
                here = _moved(here, "..")
            name = levels[-1].pop()
            here = _moved(here, name)
            writer.entry("directory", name, os.fstat(here), attributes=_attributes(here))
    finally:
        os.close(here)


def restore(source: IO[bytes], root: int, first_id: int, stop: Event) -> None:
    """Make what `save` wrote in an empty tmpfs. Raise OSError, and Cancelled."""
    with _files_of(first_id):
        _restore(source, root, first_id, stop)


def _check(stop: Event) -> None:
    if stop.is_set():
        raise Cancelled("the copy was stopped before it finished", hint="try again")


@contextmanager
def _files_of(owner: int) -> Iterator[None]:
    """Let new files of this thread belong to `owner`, without losing any right over files.

    A file system that was mounted in a user namespace has no files of other users, not even of the
    host's root.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # struct __user_cap_header_struct and two of __user_cap_data_struct: effective, permitted, …
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()
    try:
        libc.setfsgid(owner)
        # This also takes away the rights over files, until the id is 0 again.
        libc.setfsuid(owner)
        if libc.capget(header, sets) == 0:
            sets[0], sets[3] = sets[1], sets[4]
            libc.capset(header, sets)
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(0)


def _restore(source: IO[bytes], root: int, first_id: int, stop: Event) -> None:
    here = os.dup(root)
    entered: list[dict[str, Any]] = []
    held = _Held(root)
    try:
        for line in iter(source.readline, b""):
            _check(stop)
            entry = json.loads(line)
            kind, name = entry["kind"], entry.get("name", "")
            if kind == "up":
                _finish(here, entered.pop(), first_id)
                here = _moved(here, "..")
            elif kind == "directory":
                if name:
                    os.mkdir(name, 0o700, dir_fd=here)
                    here = _moved(here, name)
                entered.append(entry)
            elif kind == "file":
                _restore_file(source, here, entry, first_id, stop)
                if "number" in entry:
                    held.hold(here, name, entry["number"], entry["names"])
            elif kind == "link":
                held.link(entry["number"], here, name)
            else:
                if kind == "symlink":
                    os.symlink(entry["target"], name, dir_fd=here)
                else:
                    os.mkfifo(name, entry["mode"], dir_fd=here)
                uid, gid = (first_id + number for number in entry["ids"])
                os.chown(name, uid, gid, dir_fd=here, follow_symlinks=False)
                if kind == "fifo":
                    os.chmod(name, entry["mode"], dir_fd=here)
                times = (entry["time"], entry["time"])
                os.utime(name, ns=times, dir_fd=here, follow_symlinks=False)
        held.remove()
        _finish(here, entered.pop(), first_id)
    finally:
        os.close(here)


@dataclass(slots=True)
class _Held:
    """Further names of files, in the root, from which their links are made at any depth.

    A name counts as an inode on a tmpfs. The last link takes the name of ours, so that a tree that
    has all inodes can be restored.
    """

    root: int
    token: str = field(default_factory=lambda: ".links-" + secrets.token_hex(16))
    names: dict[int, int] = field(default_factory=dict)
    """How many links are still to be made, by number."""

    def hold(self, here: int, name: str, number: int, count: int) -> None:
        os.link(name, self._name(number), src_dir_fd=here, dst_dir_fd=self.root)
        self.names[number] = count - 1

    def link(self, number: int, here: int, name: str) -> None:
        self.names[number] -= 1
        if self.names[number]:
            os.link(self._name(number), name, src_dir_fd=self.root, dst_dir_fd=here)
        else:
            os.rename(self._name(number), name, src_dir_fd=self.root, dst_dir_fd=here)
            del self.names[number]

    def remove(self) -> None:
        """Remove what is left: a name that was not copied is below a mount."""
        for number in self.names:
            os.unlink(self._name(number), dir_fd=self.root)

    def _name(self, number: int) -> str:
        return f"{self.token}-{number}"


def _restore_file(
    source: IO[bytes], here: int, entry: dict[str, Any], first_id: int, stop: Event
) -> None:
    target = os.open(
        entry["name"], os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=here
    )
    try:
        os.truncate(target, entry["size"])
        for at, length in entry["extents"]:
            os.lseek(target, at, os.SEEK_SET)
            while length:
                _check(stop)
                block = source.read(min(length, _BLOCK))
                if not block:
                    raise OSError(errno.EIO, "the copy of /tmp is truncated")
                view = memoryview(block)
                while view:
                    view = view[os.write(target, view) :]
                length -= len(block)
        _finish(target, entry, first_id)
    finally:
        os.close(target)


def _finish(target: int, entry: dict[str, Any], first_id: int) -> None:
    """Give an open file or directory its owner, mode, attributes and time."""
    uid, gid = (first_id + number for number in entry["ids"])
    os.chown(target, uid, gid)
    os.chmod(target, entry["mode"])
    for name, value in entry["attributes"].items():
        os.setxattr(target, name, bytes.fromhex(value))
    os.utime(target, ns=(entry["time"], entry["time"]))


def _moved(here: int, name: str) -> int:
    """Return the open directory `name`, in place of `here`."""
    there = os.open(name, _DIRECTORY, dir_fd=here)
    os.close(here)
    return there


def _extents(file: int, size: int) -> list[tuple[int, int]]:
    extents: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            at = os.lseek(file, at, os.SEEK_DATA)
        except OSError:
            break  # ENXIO: only a hole is left
        end = os.lseek(file, at, os.SEEK_HOLE)
        extents.append((at, end - at))
        at = end
    return extents


def _attributes(file: int) -> dict[str, str]:
    attributes: dict[str, str] = {}
    # Kernels before 6.6 have none on a tmpfs.
    with suppress(OSError):
        for name in os.listxattr(file):
            if name.startswith("user."):
                attributes[name] = os.getxattr(file, name).hex()
    return attributes
