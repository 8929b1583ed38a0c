"""Write a layer's tree as a tar again: the same tree gives the same bytes, wherever it is.

Entries are sorted, times are whole seconds, owners are numbers; whiteouts and opaque directories
become the marks that image formats use. Files are opened without following links. The bytes differ
from those of the original layer, so its digest may differ too. Raises BuildFailed for a file whose
name would be such a mark.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from typing import TYPE_CHECKING, BinaryIO, Final

from sandkasten_runtime.images.layers.overlay import WHITEOUT, is_opaque, is_whiteout, refuse_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHUNK: Final = 1024 * 1024
_OPAQUE: Final = ".wh..wh..opq"
# Our bookkeeping and the kernel's; not part of the image.
_OURS: Final = ("trusted.overlay.", "user.overlay.", "system.")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_layer(
    tree: str,
    out: BinaryIO,
    progress: Callable[[int], None],
    *,
    first_id: int = 0,
    mtime: int | None = None,
) -> None:
    """Write the tree to `out`; `progress` is called with the number of bytes of files written.

    `first_id` is subtracted from every owner: a sandbox's changes have ids of its own range.
    `mtime` replaces every timestamp that only shows when the tree was created here.
    """
    linked: dict[tuple[int, int], str] = {}
    root = os.open(tree, _DIRECTORY)
    try:
        if is_opaque(root):
            out.write(_mark(_OPAQUE).tobuf(tarfile.PAX_FORMAT, "utf-8"))
    finally:
        os.close(root)
    for name, fd, entry in _walk(tree):
        refuse_mark(entry)
        info = _header(name, fd, entry, linked, first_id)
        if info is None:
            continue
        info.mtime = info.mtime if mtime is None else mtime
        out.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        if info.isreg() and info.size:
            _copy(fd, entry, info.size, out, progress)
        if info.isdir():
            inner = os.open(entry, _DIRECTORY, dir_fd=fd)
            try:
                if is_opaque(inner):
                    out.write(_mark(f"{name}/{_OPAQUE}").tobuf(tarfile.PAX_FORMAT, "utf-8"))
            finally:
                os.close(inner)
    out.write(bytes(2 * tarfile.BLOCKSIZE))


def _walk(tree: str) -> Iterator[tuple[str, int, str]]:
    """Yield each entry with a descriptor of its directory, parents first, in byte order."""
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        fd = _descend(tree, directory)
        try:
            names = sorted(os.listdir(fd), key=os.fsencode)
            below = []
            for name in names:
                path = f"{directory}/{name}" if directory else name
                yield path, fd, name
                if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    below.append(path)
            waiting += reversed(below)
        finally:
            os.close(fd)


def _descend(tree: str, path: str) -> int:
    """Open one component at a time: a path may be longer than the kernel accepts in one call."""
    fd = os.open(tree, _DIRECTORY)
    for part in path.split("/") if path else ():
        inner = os.open(part, _DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    return fd


def _header(
    name: str, fd: int, entry: str, linked: dict[tuple[int, int], str], first_id: int
) -> tarfile.TarInfo | None:
    status = os.stat(entry, dir_fd=fd, follow_symlinks=False)
    if is_whiteout(status):
        parent, slash, last = name.rpartition("/")
        return _mark(f"{parent}{slash}{WHITEOUT}{last}")
    info = tarfile.TarInfo(name)
    info.mode = stat.S_IMODE(status.st_mode)
    info.mtime = int(status.st_mtime)
    # An ordinary user's store has one owner for everything, which means nothing elsewhere.
    if os.geteuid() == 0:
        info.uid, info.gid = max(0, status.st_uid - first_id), max(0, status.st_gid - first_id)
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        info.type = tarfile.SYMTYPE
        info.linkname = os.readlink(entry, dir_fd=fd)
    elif stat.S_ISREG(status.st_mode):
        first = linked.setdefault((status.st_dev, status.st_ino), name)
        if status.st_nlink > 1 and first != name:
            info.type = tarfile.LNKTYPE
            info.linkname = first
            return info
        info.size = status.st_size
    elif stat.S_ISFIFO(status.st_mode):
        info.type = tarfile.FIFOTYPE
    else:
        return None
    info.pax_headers = _attributes(fd, entry, status)
    return info


def _attributes(fd: int, entry: str, status: os.stat_result) -> dict[str, str]:
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        return {}
    inner = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        names = sorted(name for name in os.listxattr(inner) if not name.startswith(_OURS))
        return {
            f"SCHILY.xattr.{name}": os.getxattr(inner, name).decode("utf-8", "surrogateescape")
            for name in names
        }
    finally:
        os.close(inner)


def _copy(fd: int, entry: str, size: int, out: BinaryIO, progress: Callable[[int], None]) -> None:
    inner = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    with io.FileIO(inner) as file:
        remaining = size
        while remaining:
            block = file.read(min(remaining, _CHUNK))
            if not block:
                raise OSError(f"{entry} became shorter while it was read")
            out.write(block)
            remaining -= len(block)
            progress(len(block))
    out.write(bytes(-size % tarfile.BLOCKSIZE))


def _mark(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = 0o600
    return info
