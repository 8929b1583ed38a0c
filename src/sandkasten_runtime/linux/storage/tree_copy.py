"""Copy sparse files and walk directory trees of workspaces. Blocking.

Only for workspaces that no sandbox uses; no other process may change a tree while it is walked
here. `stop` is set when the caller was cancelled, and ends a copy with Cancelled.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, Final

from sandkasten.disk.os_errors import no_space
from sandkasten.errors import BackendUnavailable, Cancelled
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.linux.storage.ext4 import command

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from pathlib import Path

# Bytes between two checks of `stop`.
_CHUNK: Final = 16 * 1024 * 1024
# <linux/fs.h>
_FICLONE: Final = 0x4004_9409
_NOT_SHARED: Final = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOSYS, errno.EXDEV, errno.EINVAL}
)
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_sparse(source: Path, target: Path, stop: threading.Event) -> None:
    """Copy only the data, and sync it; holes stay holes."""
    with source.open("rb") as src, target.open("xb") as dst:
        copy_extents(src.fileno(), dst.fileno(), stop)
        os.fsync(dst.fileno())


def share_or_copy(src: int, dst: int, stop: threading.Event | None = None) -> bool:
    """Give an empty file the content of another one; return whether they share their blocks."""
    shared = share(src, dst)
    if not shared:
        copy_extents(src, dst, stop)
    return shared


def share(src: int, dst: int) -> bool:
    """Let an empty file share the blocks of another one. Return False where that is impossible."""
    try:
        fcntl.ioctl(dst, _FICLONE, src)
    except OSError as exc:
        if exc.errno not in _NOT_SHARED:
            raise
        return False
    return True


def can_share(directory: Path) -> bool:
    """Try whether the file system of a directory can share blocks between files."""
    temporary = tempfile.TemporaryFile
    with temporary(dir=directory) as source, temporary(dir=directory) as target:
        source.truncate(4096)
        return share_or_copy(source.fileno(), target.fileno())


def copy_extents(src: int, dst: int, stop: threading.Event | None = None) -> None:
    """Give an empty file the size and the data of another one; holes stay holes."""
    size = os.fstat(src).st_size
    os.ftruncate(dst, size)
    at = 0
    while at < size:
        try:
            at = os.lseek(src, at, os.SEEK_DATA)
        except OSError:
            break  # ENXIO: only a hole is left
        end = os.lseek(src, at, os.SEEK_HOLE)
        while at < end:
            if stop is not None and stop.is_set():
                raise Cancelled("the copy was stopped before it finished", hint="try again")
            moved = os.copy_file_range(src, dst, min(end - at, _CHUNK), at, at)
            if moved == 0:
                raise OSError(errno.EIO, "the file became shorter while it was copied")
            at += moved


def copy_tree(source: Path, target: Path, stop: threading.Event) -> None:
    words = ("cp", "-a", "--reflink=auto", "-T", "--", os.fspath(source), os.fspath(target))
    status, output = command(words, stop, 24 * 3600)
    if status != 0:
        if "No space left" in output:
            raise no_space("could not copy a workspace: the disk is full")
        raise BackendUnavailable(
            f"a workspace could not be copied: {output[-200:]}",
            hint="files that their owner cannot read cannot be copied",
        )


def walk(tree: Path) -> Iterator[os.stat_result]:
    """Yield everything in it without following links; skip what cannot be read.

    One directory is open at a time, so neither depth nor path length matters. If a sandbox moves
    directories meanwhile, the walk may end early.
    """
    here = os.open(tree, _DIRECTORY)
    levels: list[_Level] = []
    try:
        while True:
            level = _Level(os.fstat(here))
            levels.append(level)
            yield level.itself
            for name in os.listdir(here):
                with suppress(OSError):
                    status = os.stat(name, dir_fd=here, follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        level.below.append(name)
                    else:
                        yield status
            while (inner := _next(here, levels[-1])) is None:
                levels.pop()
                if not levels:
                    return
                above = os.open("..", _DIRECTORY, dir_fd=here)
                os.close(here)
                here = above
                if not os.path.samestat(os.fstat(here), levels[-1].itself):
                    return
            os.close(here)
            here = inner
    finally:
        os.close(here)


@dataclass(frozen=True, slots=True)
class _Level:
    itself: os.stat_result
    below: list[str] = field(default_factory=list)


def _next(here: int, level: _Level) -> int | None:
    """Open the next directory of a level; skip one whose parent cannot be reopened."""
    while level.below:
        with suppress(OSError):
            inner = os.open(level.below.pop(), _DIRECTORY, dir_fd=here)
            try:
                os.stat("..", dir_fd=inner)
            except OSError:
                os.close(inner)
                raise
            return inner
    return None
