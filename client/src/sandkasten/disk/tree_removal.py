"""Removal of directory trees of any depth and with any permissions.

Blocking. The tree must not change meanwhile.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def remove_tree(root: Path) -> None:
    """Remove a directory with everything in it. Raises OSError where even its owner cannot.

    Directories with content are moved up to `root` and emptied there, so neither the depth nor
    the length of a path matters. Never follows a link.
    """
    if not stat.S_ISDIR(os.lstat(root).st_mode):
        root.unlink()
        return
    # Reading a directory needs its mode, and so does moving it and emptying it.
    root.chmod(0o700)
    waiting = [root]
    emptied: list[Path] = []
    while waiting:
        directory = waiting.pop()
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for entry in list(os.scandir(fd)):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=fd)
                    continue
                _open_up(entry.name, fd)
                try:
                    os.rmdir(entry.name, dir_fd=fd)
                except OSError as exc:
                    if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    aside = root / f".{secrets.token_hex(8)}"
                    os.rename(entry.name, aside, src_dir_fd=fd)
                    waiting.append(aside)
        finally:
            os.close(fd)
        emptied.append(directory)
    for directory in reversed(emptied):
        directory.rmdir()


def remove_tree_quietly(root: Path) -> bool:
    """Remove a tree as clean-up; return False if something is left for the next sweep."""
    with suppress(FileNotFoundError):
        try:
            remove_tree(root)
        except FileNotFoundError:
            raise
        except OSError:
            return False
    return True


def _open_up(name: str, parent: int) -> None:
    """Make a directory accessible, by descriptor: its name may have become a link."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)
