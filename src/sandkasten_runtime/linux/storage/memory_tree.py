"""The tree of a file system in memory (/tmp of a sandbox) as one file, and back.

Works by descriptors and follows no link. Owners, modes, times, hard links, symlinks, FIFOs, sparse
files and `user.*` attributes are kept; sockets are not. Ids are stored as they are inside. While it
is read, no process may change the tree; while it is restored, no code may run that could.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import IO, TYPE_CHECKING, Any, Final

from sandkasten.errors import Cancelled
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from threading import Event

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_BLOCK: Final = 1024 * 1024
# <linux/capability.h>
_CAPABILITIES_V3: Final = 0x2008_0522


@dataclass(slots=True)
class _Writer:
    out: IO[bytes]
    first_id: int
    stop: Event
    links: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    """Where files with several names were written first."""
    path: list[str] = field(default_factory=list)

    def entry(self, kind: str, name: str, status: os.stat_result, **more: Any) -> None:
        if self.stop.is_set():
            raise Cancelled("the copy was stopped before it finished", hint="try again")
        line = {
            "kind": kind,
            "name": name,
            "mode": stat.S_IMODE(status.st_mode),
            "ids": [status.st_uid - self.first_id, status.st_gid - self.first_id],
            "time": status.st_mtime_ns,
            **more,
        }
        self.out.write(json.dumps(line).encode() + b"\n")

    def file(self, here: int, name: str, status: os.stat_result) -> None:
        place = (status.st_dev, status.st_ino)
        if status.st_nlink > 1:
            if place in self.links:
                return self.entry("link", name, status, target=self.links[place])
            self.links[place] = [*self.path, name]
        source = os.open(name, os.O_RDONLY | _FILE, dir_fd=here)
        try:
            extents = _extents(source, status.st_size)
            more = {"size": status.st_size, "extents": extents, "attributes": _attributes(source)}
            self.entry("file", name, status, **more)
            for at, length in extents:
                os.lseek(source, at, os.SEEK_SET)
                while length:
                    block = os.read(source, min(length, _BLOCK))
                    if not block:
                        raise OSError(errno.EIO, "a file became shorter while it was copied")
                    self.out.write(block)
                    length -= len(block)
        finally:
            os.close(source)
        return None


def save(root: int, out: IO[bytes], first_id: int, stop: Event) -> None:
    """Write everything below an open directory. Raise OSError."""
    writer = _Writer(out, first_id, stop)
    here = os.dup(root)
    levels: list[list[str]] = []
    try:
        status = os.fstat(here)
        writer.entry("directory", "", status, attributes=_attributes(here))
        while True:
            below: list[str] = []
            for name in sorted(os.listdir(here)):
                status = os.stat(name, dir_fd=here, follow_symlinks=False)
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
                writer.out.write(b'{"kind": "up"}\n')
                writer.path.pop()
                here = _moved(here, "..")
            name = levels[-1].pop()
            here = _moved(here, name)
            writer.path.append(name)
            writer.entry("directory", name, os.fstat(here), attributes=_attributes(here))
    finally:
        os.close(here)


def restore(source: IO[bytes], root: int, first_id: int) -> None:
    """Make what `save` wrote in an empty directory. Raise OSError."""
    with _files_of(first_id):
        _restore(source, root, first_id)


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


def _restore(source: IO[bytes], root: int, first_id: int) -> None:
    here = os.dup(root)
    entered: list[dict[str, Any]] = []
    try:
        for line in iter(source.readline, b""):
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
                _restore_file(source, here, entry, first_id)
            elif kind == "link":
                _link(root, entry["target"], here, name)
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
        _finish(here, entered.pop(), first_id)
    finally:
        os.close(here)


def _restore_file(source: IO[bytes], here: int, entry: dict[str, Any], first_id: int) -> None:
    target = os.open(
        entry["name"], os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=here
    )
    try:
        os.truncate(target, entry["size"])
        for at, length in entry["extents"]:
            os.lseek(target, at, os.SEEK_SET)
            while length:
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


def _link(root: int, target: list[str], here: int, name: str) -> None:
    above = os.dup(root)
    try:
        for part in target[:-1]:
            above = _moved(above, part)
        os.link(target[-1], name, src_dir_fd=above, dst_dir_fd=here, follow_symlinks=False)
    finally:
        os.close(above)


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
