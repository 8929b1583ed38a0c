"""Files of an earlier stage, gathered from its layers into one directory, for `COPY --from`.

Layers are stacked as overlayfs would show them. Links on the way to a source, and a source that is
a link, lead to files of the stage itself. Raises BuildFailed, also for OSError of the disk.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BuildFailed
from sandkasten.lazy_dataclass import dataclass
from sandkasten_build.builder.copy_step import MAX_FILES, MAX_PATH
from sandkasten_runtime.images.layers.overlay import MOST_LINKS, is_opaque, is_whiteout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_WILD: Final = frozenset("*?[")
# The store's file system has no hard links, or no more of this file.
_NO_LINK: Final = frozenset({errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the layers show under a name. `paths` are those of a directory, topmost first."""

    paths: tuple[str, ...]
    seen: os.stat_result
    closed: bool
    """Whether what lower layers have is hidden."""


def gather(trees: Sequence[str], sources: Sequence[str], into: Path) -> tuple[str, ...]:
    """Put each source below `into` and return the paths there. For a pattern, put the directory
    above it.

    Each source has its own directory, so that no path leads through a link that another one
    brought: such a link could lead to the host.
    """
    root = _Entry(tuple(reversed(trees)), os.stat(into), closed=False)
    count = 0
    paths: list[str] = []
    for number, source in enumerate(sources):
        parts = [part for part in source.split("/") if part not in ("", ".")]
        wild = next((n for n, part in enumerate(parts) if _WILD & set(part)), len(parts))
        try:
            entry = _find(root, parts[:wild]) if trees else None
            if entry is None:
                raise BuildFailed(
                    f"{source} does not exist in the stage or image that it is copied from",
                    hint="check the path; it begins at the root of that image",
                )
            target = into.joinpath(str(number), *parts[:wild])
            target.parent.mkdir(parents=True, exist_ok=True)
            count = _put(entry, os.fspath(target), count)
            paths.append("/".join([str(number), *parts]))
        except OSError as exc:
            raise BuildFailed(
                f"{source} cannot be copied: {exc.strerror}",
                hint="check the free space of the disk",
            ) from exc
    return tuple(paths)


def _find(root: _Entry, parts: Sequence[str]) -> _Entry | None:
    above, waiting, links = [root], list(parts), 0
    while waiting:
        part = waiting.pop(0)
        if part in (".", ".."):
            # The parent of an image's root is its root.
            above = above if part == "." or len(above) == 1 else above[:-1]
            continue
        entry = _look(above[-1], part)
        if entry is None:
            return None
        if not stat.S_ISLNK(entry.seen.st_mode):
            above.append(entry)
            continue
        links += 1
        if links > MOST_LINKS:
            return None
        target = os.readlink(entry.paths[0])
        above = above[:1] if target.startswith("/") else above
        waiting = [*(piece for piece in target.split("/") if piece), *waiting]
    return above[-1]


def _look(directory: _Entry, name: str) -> _Entry | None:
    """Return what a directory shows under a name; None if it shows nothing."""
    entry: _Entry | None = None
    if not stat.S_ISDIR(directory.seen.st_mode):
        return None
    for above in directory.paths:
        path = os.path.join(above, name)
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        entry = _below(entry, path, status)
        if entry.closed:
            break
    return None if entry is None or is_whiteout(entry.seen) else entry


def _below(upper: _Entry | None, path: str, status: os.stat_result) -> _Entry:
    """Return an entry together with one of the same name in the next lower layer."""
    if not stat.S_ISDIR(status.st_mode):
        return _Entry((path,), status, closed=True) if upper is None else _closed(upper)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        closed = is_opaque(fd)
    finally:
        os.close(fd)
    if upper is None:
        return _Entry((path,), status, closed)
    return _Entry((*upper.paths, path), upper.seen, closed)


def _closed(upper: _Entry) -> _Entry:
    return _Entry(upper.paths, upper.seen, closed=True)


def _put(entry: _Entry, target: str, count: int) -> int:
    """Write an entry with all that it contains; return how many there are by now."""
    waiting = [(entry, target)]
    directories: list[tuple[str, int]] = []
    while waiting:
        entry, target = waiting.pop()
        count += 1
        if count > MAX_FILES or len(target) > 2 * MAX_PATH:
            raise BuildFailed(
                f"a copy has more than {MAX_FILES} files, or a path that is too long",
                hint="copy less at once",
            )
        mode = entry.seen.st_mode
        if stat.S_ISDIR(mode):
            os.mkdir(target, mode=0o700)
            directories.append((target, stat.S_IMODE(mode) & 0o777))
            names = {name for path in entry.paths for name in os.listdir(path)}
            inner = ((_look(entry, name), os.path.join(target, name)) for name in sorted(names))
            waiting += [(child, to) for child, to in inner if child is not None]
        else:
            _put_file(entry.paths[0], mode, target)
    for path, mode in reversed(directories):
        os.chmod(path, mode)
    return count


def _put_file(path: str, mode: int, target: str) -> None:
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(path), target)
    elif stat.S_ISREG(mode):
        try:
            os.link(path, target, follow_symlinks=False)
        except OSError as exc:
            if exc.errno not in _NO_LINK:
                raise
            shutil.copy2(path, target, follow_symlinks=False)
    else:
        raise BuildFailed(
            f"{os.path.basename(path)} is not a file, directory or link",
            hint="remove it in the stage, or copy something else",
        )
