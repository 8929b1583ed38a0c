"""Look up files of an image in its layers, as an overlay of them would show them. Blocking.

Layers come from images, so a symlink in them is never followed by the kernel: each component of a
path is looked at by itself, and a symlink is resolved here, within the image.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_LINKS: Final = 40
# A link of an image may lead to a name that no file system can hold.
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENAMETOOLONG})
_OPAQUE: Final = ("trusted.overlay.opaque", "user.overlay.opaque")


class LayerView:
    def __init__(self, layers: Sequence[str]) -> None:
        """`layers`: directories, the lowest first."""
        self._layers = tuple(reversed(layers))

    def resolve(self, path: str) -> str | None:
        """Return the path without symlinks; None if the image does not have it."""
        waiting = _parts(path)[::-1]
        resolved: list[str] = []
        links = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                resolved = resolved[:-1]
                continue
            there = self._entry([*resolved, part])
            if there is None:
                return None
            entry, mode = there
            if not stat.S_ISLNK(mode):
                if waiting and not stat.S_ISDIR(mode):
                    return None
                resolved.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            target = os.readlink(entry)
            if target.startswith("/"):
                resolved = []
            waiting += _parts(target)[::-1]
        return "/" + "/".join(resolved)

    def is_directory(self, path: str) -> bool:
        there = self._entry(_parts(path))
        return there is not None and stat.S_ISDIR(there[1])

    def read(self, path: str, most: int) -> bytes | None:
        """Return the content of a file by its resolved path; None if it is not a regular file or
        is larger than `most`.
        """
        there = self._entry(_parts(path))
        if there is None or not stat.S_ISREG(there[1]):
            return None
        with open(there[0], "rb", opener=_without_links) as file:
            content = file.read(most + 1)
        return None if len(content) > most else content

    def _entry(self, parts: Sequence[str]) -> tuple[str, int] | None:
        """Return where an entry is, and its mode. Its parents are directories in the view."""
        for layer in self._layers:
            path, mode = layer, stat.S_IFDIR
            hides = False  # whether the layers below do not show the entry
            for part in parts:
                if not stat.S_ISDIR(mode):
                    return None
                path = f"{path}/{part}"
                try:
                    status = os.lstat(path)
                except OSError as exc:
                    if exc.errno not in _ABSENT:
                        raise
                    mode = 0
                    break
                mode = status.st_mode
                if stat.S_ISCHR(mode) and status.st_rdev == 0:
                    return None  # a whiteout
                hides = hides or (stat.S_ISDIR(mode) and _is_opaque(path))
            if mode:
                return path, mode
            if hides:
                return None
        return None


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _is_opaque(path: str) -> bool:
    for name in _OPAQUE:
        try:
            if os.getxattr(path, name, follow_symlinks=False) == b"y":
                return True
        except OSError:
            continue
    return False


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
