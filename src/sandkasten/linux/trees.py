"""What a workspace holds, moved as a whole: sparse files and directory trees. Blocking.

Only for what no sandbox has at the moment; nobody may change a tree while it is walked here.
`stop` is set when nobody waits any more, and ends a copy with Cancelled.
"""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable, Cancelled
from sandkasten.linux.ext4 import command, full

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from pathlib import Path

# Between two looks at `stop`.
_CHUNK: Final = 16 * 1024 * 1024


def copy_sparse(source: Path, target: Path, stop: threading.Event) -> None:
    with source.open("rb") as src, target.open("xb") as dst:
        size = os.fstat(src.fileno()).st_size
        dst.truncate(size)
        at = 0
        while at < size:
            try:
                at = os.lseek(src.fileno(), at, os.SEEK_DATA)
            except OSError:
                break  # ENXIO: only a hole is left
            end = os.lseek(src.fileno(), at, os.SEEK_HOLE)
            while at < end:
                if stop.is_set():
                    raise Cancelled("the copy was ended half way", hint="try again")
                part = min(end - at, _CHUNK)
                moved = os.copy_file_range(src.fileno(), dst.fileno(), part, at, at)
                if moved == 0:
                    raise OSError(errno.EIO, "the file became shorter while it was copied")
                at += moved
        os.fsync(dst.fileno())


def copy_tree(source: Path, target: Path, stop: threading.Event) -> None:
    words = ("cp", "-a", "--reflink=auto", "-T", "--", os.fspath(source), os.fspath(target))
    status, said = command(words, stop, 24 * 3600)
    if status != 0:
        if "No space left" in said:
            raise full("copy a workspace")
        raise BackendUnavailable(
            f"a workspace could not be copied: {said[-200:]}",
            hint="files that their own owner may not read cannot be copied",
        )


def walk(tree: Path) -> Iterator[os.stat_result]:
    """Everything in it, links not followed; what cannot be looked at is left out."""
    for folder, _, files in os.walk(tree):
        for name in (".", *files):
            try:
                yield os.lstat(os.path.join(folder, name))
            except OSError:
                continue


def remove_tree(tree: Path) -> None:
    """Whatever modes its former user left there."""
    if not tree.exists():
        return
    for folder, below, _ in os.walk(tree):
        for name in below:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(tree)
