"""Installed package sets on disk: `sets/<key>/tree`, whole or not at all.

A set is made in a scratch directory and renamed when it is complete, so a process that dies leaves
a scratch directory that the next one removes, and never half a set. The least recently used sets
are removed when the shelf is full, except those that a sandbox has or was just given. Blocking,
except for the lock.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from sandkasten.disk.atomic_file import write_file
from sandkasten.disk.file_lock import locked
from sandkasten.disk.os_errors import translated
from sandkasten.disk.small_file import read_json_object
from sandkasten.disk.tree_removal import remove_tree_quietly
from sandkasten.errors import QuotaExceeded
from sandkasten_runtime.images.canonical_json import canonical_json
from sandkasten_runtime.images.layers.store_locks import StoreLocks
from sandkasten_runtime.images.thread_work import to_the_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

# A set is promised to a sandbox before the ledger records it; creating a sandbox has deadlines that
# sum up to less than this.
GRACE_S: Final = 600.0
_ABOUT: Final = "about.json"


class Shelf:
    """`root` is `<data_dir>/packages`, created when something is put there."""

    def __init__(self, root: Path, *, max_bytes: int) -> None:
        self._root = root
        self._sets = root / "sets"
        self._max_bytes = max_bytes
        self._locks = StoreLocks(root)

    def tree(self, key: str) -> Path:
        return self._sets / key / "tree"

    def has(self, key: str) -> bool:
        return self.tree(key).is_dir()

    def use(self, key: str) -> bool:
        """Return whether the set exists; if so, mark it as the most recently used."""
        try:
            os.utime(self._sets / key)
        except FileNotFoundError:
            return False
        return self.has(key)

    def prepare(self) -> None:
        with translated("use the store of packages"):
            for name in ("locks", "making", "sets"):
                (self._root / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        """Lock this key across all processes. Waits without holding a thread."""
        self.prepare()
        async with AsyncExitStack() as stack:
            with translated("use the store of packages"):
                await stack.enter_async_context(locked(self._root / "locks" / key))
            yield

    @asynccontextmanager
    async def scratch(self) -> AsyncIterator[Path]:
        """Yield a directory that is removed afterwards, or swept once its process is dead."""
        with translated("use the store of packages"):
            path, fd = self._locks.claim_new()
        try:
            yield path
        finally:
            try:
                await to_the_end(remove_tree_quietly, path)
            finally:
                os.close(fd)

    def sweep(self) -> int:
        return self._locks.sweep()

    def tool(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return one of our directories, which sandboxes mount, created if it is missing."""
        path = self._root / "tools" / name
        with translated("keep a tool for packages"):
            if not path.is_dir():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with self._locks.place() as scratch:
                    make(scratch / "tool")
                    settle(scratch / "tool")
                    # Another process may have been faster; its copy is as good.
                    _move(scratch / "tool", path)
        return path

    def put(self, key: str, directory: Path, about: dict[str, object]) -> None:
        """Publish a set. `directory` has it as `tree` and is a scratch directory."""
        with translated("keep a set of packages"):
            size = settle(directory / "tree")
            write_file(
                directory / _ABOUT, canonical_json({**about, "bytes": size, "made": time.time()})
            )
            directory.rename(self._sets / key)

    def about(self, key: str) -> dict[str, object]:
        return read_json_object(self._sets / key / _ABOUT) or {}

    def make_room(self, need: int, in_use: AbstractSet[str]) -> None:
        """Raise QuotaExceeded if `need` more bytes do not fit even without unused sets."""
        entries = sorted(self._entries(), key=lambda entry: entry[0])
        over = sum(size for _, _, size in entries) + need - self._max_bytes
        idle_since = time.time() - GRACE_S
        for used, key, size in entries:
            if over <= 0:
                return
            if key not in in_use and used < idle_since:
                self._remove(key)
                over -= size
        if over > 0:
            raise QuotaExceeded(
                f"{need} bytes of packages do not fit: packages.max_bytes is {self._max_bytes}, "
                "and the rest is in use",
                hint="raise packages.max_bytes, or end sandboxes that have packages",
            )

    def _entries(self) -> Iterator[tuple[float, str, int]]:
        try:
            entries = list(os.scandir(self._sets))
        except FileNotFoundError:
            return
        for entry in entries:
            size = self.about(entry.name).get("bytes")
            yield entry.stat().st_mtime, entry.name, size if isinstance(size, int) else 0

    def _remove(self, key: str) -> None:
        # Hide it in one step: no sandbox is given half of it.
        with self._locks.place() as away:
            (self._sets / key).rename(away / "set")
            remove_tree_quietly(away / "set")


def settle(tree: Path) -> int:
    """Make the output of a sandbox readable to all, and nothing more; return its size.

    Follows no link. Ownership inside the sandbox is discarded.
    """
    size = 0
    root = os.geteuid() == 0

    def owned(path: str, mode: int | None, fd: int | None) -> None:
        if root:
            os.chown(path, 0, 0, dir_fd=fd, follow_symlinks=False)
        if mode is not None:
            os.chmod(path, mode, dir_fd=fd)

    owned(os.fspath(tree), 0o755, None)
    for _, directories, files, fd in os.fwalk(tree, follow_symlinks=False, onerror=_raise):
        for name in (*directories, *files):
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                owned(name, None, fd)
            elif stat.S_ISDIR(status.st_mode):
                owned(name, 0o755, fd)
            else:
                owned(name, 0o755 if status.st_mode & 0o111 else 0o644, fd)
                size += status.st_blocks * 512
    return size


def _move(source: Path, to: Path) -> None:
    try:
        source.rename(to)
    except OSError as exc:
        if exc.errno != errno.ENOTEMPTY:
            raise


def _raise(exc: OSError) -> None:
    raise exc
