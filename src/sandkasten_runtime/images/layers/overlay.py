"""How layers are stacked: whiteouts, opaque directories, and one merged view.

The view reads a single path through the layers as overlayfs would show it. Each component is opened
by itself and never followed by the kernel, so a link of an image leads to the image's own files,
and a device or FIFO is never opened.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BuildFailed
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_LINKS: Final = 40
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


WHITEOUT: Final = ".wh."


def refuse_mark(path: str) -> None:
    """Raise BuildFailed for a file name that would hide another file wherever the layer is
    unpacked.
    """
    if any(part.startswith(WHITEOUT) for part in path.split("/")):
        raise BuildFailed(
            f"{shown(path)} cannot be in a layer: names that begin with {WHITEOUT} remove files",
            hint="call it something else, or leave it out",
        )


def opaque_attribute() -> str:
    """Return the attribute: `trusted.*` is only for root; overlayfs reads the other one with
    `userxattr`.
    """
    return "trusted.overlay.opaque" if os.geteuid() == 0 else "user.overlay.opaque"


def is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(directory: int) -> bool:
    """Return whether this directory (an open descriptor) hides those of its name below."""
    with suppress(OSError):
        return os.getxattr(directory, opaque_attribute()) == b"y"
    return False


def read_merged(trees: Sequence[str], path: str, limit: int) -> bytes | None:
    """Return the first `limit` bytes of a regular file of the image; None if there is none."""
    with ExitStack() as opened:
        fd = _open(opened, trees, path)
        return None if fd is None else os.read(fd, limit)


def has_program(trees: Sequence[str], path: str) -> bool:
    with ExitStack() as opened:
        fd = _open(opened, trees, path)
        return fd is not None and bool(os.fstat(fd).st_mode & 0o111)


def _open(opened: ExitStack, trees: Sequence[str], path: str) -> int | None:
    roots = [_keep(opened, os.open(tree, _DIRECTORY)) for tree in reversed(trees)]
    above: list[list[int]] = [roots]
    waiting = [part for part in path.split("/") if part]
    links = 0
    while waiting:
        part = waiting.pop(0)
        if part == ".":
            continue
        if part == "..":
            # The parent of an image's root is its root.
            above = above[:-1] or [roots]
            continue
        visible = _visible(above[-1], part)
        if visible is None:
            return None
        where, status = visible
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MOST_LINKS:
                return None
            target = os.readlink(part, dir_fd=where)
            if target.startswith("/"):
                above = [roots]
            waiting = [*(p for p in target.split("/") if p), *waiting]
        elif stat.S_ISDIR(status.st_mode):
            above.append(_descend(opened, above[-1], part))
        elif stat.S_ISREG(status.st_mode) and not waiting:
            return _keep(opened, os.open(part, _FILE, dir_fd=where))
        else:
            return None
    return None


def _visible(directories: Sequence[int], name: str) -> tuple[int, os.stat_result] | None:
    """Return the topmost entry of that name. A whiteout is a device, and devices are not
    followed.
    """
    for fd in directories:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError as exc:
            if exc.errno in _NOT_THERE:
                continue
            raise
        return fd, status
    return None


def _descend(opened: ExitStack, directories: Sequence[int], name: str) -> list[int]:
    """Return the visible directories of that name, topmost first."""
    below: list[int] = []
    for fd in directories:
        try:
            inner = _keep(opened, os.open(name, _DIRECTORY, dir_fd=fd))
        except FileNotFoundError:
            continue
        except OSError as exc:
            # Another entry of that name hides what is below it.
            if exc.errno in _NOT_THERE:
                break
            raise
        below.append(inner)
        if is_opaque(inner):
            break
    return below


def _keep(opened: ExitStack, fd: int) -> int:
    opened.callback(os.close, fd)
    return fd


@dataclass(frozen=True, slots=True)
class Parent:
    """A directory of an image, or one that has to be created; `path` has no leading slash."""

    path: str
    mode: int = 0o755
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a path of an image really is: the directories on the way, links resolved."""

    parents: tuple[Parent, ...]
    there: bool
    """Whether the last of them is already a directory of the image."""


def landing(trees: Sequence[str], path: str) -> Landing | None:
    """Return the directories that lead to `path`, itself the last; None if something is in the
    way.
    """
    with ExitStack() as opened:
        roots = [_keep(opened, os.open(tree, _DIRECTORY)) for tree in reversed(trees)]
        above: list[tuple[list[int], tuple[Parent, ...]]] = [(roots, ())]
        waiting = [part for part in path.split("/") if part]
        links, there = 0, True
        while waiting:
            part = waiting.pop(0)
            if part in (".", ".."):
                above = above if part == "." else above[:-1] or [(roots, ())]
                continue
            directories, before = above[-1]
            name = f"{before[-1].path}/{part}" if before else part
            visible = _visible(directories, part)
            if visible is None or is_whiteout(visible[1]):
                there = False
                above.append(([], (*before, Parent(name))))
                continue
            where, status = visible
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > MOST_LINKS:
                    return None
                target = os.readlink(part, dir_fd=where)
                above = [(roots, ())] if target.startswith("/") else above
                waiting = [*(p for p in target.split("/") if p), *waiting]
            elif stat.S_ISDIR(status.st_mode):
                parent = Parent(name, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
                above.append((_descend(opened, directories, part), (*before, parent)))
            else:
                return None
        return Landing(above[-1][1], there)
