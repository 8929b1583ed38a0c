"""Locks of the image store: flock on files and directories, across processes.

Every lock ends with the process that holds it, however that ends. `working` is shared by all who
add, and excludes garbage collection; `editing` is held briefly while records and names change;
`alone` is one holder per layer. A directory below `making` belongs to the holder of its lock; one
without a holder is a leftover.
"""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sandkasten.disk.file_lock import open_lock, try_lock, wait_for_lock
from sandkasten.disk.tree_removal import remove_tree_quietly
from sandkasten.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class StoreLocks:
    """The locks of one store, below `root`, which exists."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._making = root / "making"

    @contextmanager
    def working(self) -> Iterator[None]:
        """What is added meanwhile is not taken for garbage. Any number at once; re-entrant."""
        with _held(self._root / ".working", shared=True):
            yield

    @contextmanager
    def collecting(self, wait_s: float) -> Iterator[None]:
        """Exclude adding. Raise Busy if an image is still being added after `wait_s`."""
        with _held(self._root / ".working", wait_s=wait_s):
            yield

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Exclusive access to records and names. Held for milliseconds."""
        with _held(self._root / ".editing"):
            yield

    @contextmanager
    def alone(self, name: str, while_waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """One holder at a time for this name; `while_waiting` may raise to give up."""
        with _held(self._root / "locks" / name, while_waiting=while_waiting):
            yield

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Yield a fresh directory below `making`, removed at the end if it still exists."""
        path, fd = self.claim_new()
        try:
            yield path
        finally:
            if path.exists():
                remove_tree_quietly(path)
            os.close(fd)

    def claim_new(self) -> tuple[Path, int]:
        """Return the directory, and the descriptor that holds it until it is closed."""
        path = self._making / secrets.token_hex(8)
        # Under the lock, or a sweep could come between creating and claiming.
        with _held(self._making):
            path.mkdir(mode=0o700)
            return path, _claim(path)

    def sweep(self) -> int:
        """Remove what dead processes left half-made; return how many. What is alive is left
        alone.
        """
        litter: list[tuple[Path, int]] = []
        with suppress(Busy), _held(self._making, wait_s=0):
            for name in os.listdir(self._making):
                path = self._making / name
                with suppress(OSError):
                    litter.append((path, _claim(path)))
        removed = 0
        for path, fd in litter:
            removed += remove_tree_quietly(path)
            os.close(fd)
        return removed


def _claim(path: Path) -> int:
    """Return the descriptor that holds it. BlockingIOError if another process does."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not try_lock(fd):
        os.close(fd)
        raise BlockingIOError
    return fd


@contextmanager
def _held(
    path: Path,
    *,
    shared: bool = False,
    wait_s: float | None = None,
    while_waiting: Callable[[], None] | None = None,
) -> Iterator[None]:
    fd = _open_directory(path) if path.is_dir() else open_lock(path)
    try:
        if not wait_for_lock(fd, shared=shared, timeout_s=wait_s, while_waiting=while_waiting):
            raise Busy(
                "another process is adding an image to the store",
                hint="try again when it has finished",
            )
        yield
    finally:
        os.close(fd)


def _open_directory(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
