"""Who works in the store at the same time: flock on files and directories, over processes.

Every lock ends with the process that holds it, however that ends. `working` is shared by all who
add, and excludes the collection of garbage; `editing` is held for the moment in which records
and names change; `alone` is one holder per layer. A directory below `making` belongs to whoever
holds its lock; one that nobody holds is litter.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from sandkasten.errors import Busy
from sandkasten.images.disk import remove_quietly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PAUSE_S: Final = 0.02


class StoreLocks:
    """The locks of one store, below `root`, which exists."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._making = root / "making"

    @contextmanager
    def working(self) -> Iterator[None]:
        """What is added meanwhile is not taken for garbage. Any number at once; re-entrant."""
        with _held(self._root / ".working", fcntl.LOCK_SH):
            yield

    @contextmanager
    def collecting(self, wait_s: float) -> Iterator[None]:
        """Nobody is adding anything. Busy when somebody still is after `wait_s`."""
        with _held(self._root / ".working", fcntl.LOCK_EX, wait_s=wait_s):
            yield

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Records and names are mine. Held for milliseconds."""
        with _held(self._root / ".editing", fcntl.LOCK_EX):
            yield

    @contextmanager
    def alone(self, name: str, while_waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """One at a time for this name; `while_waiting` may raise to give up."""
        with _held(self._root / "locks" / name, fcntl.LOCK_EX, while_waiting=while_waiting):
            yield

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A fresh directory below `making`, removed at the end if it is still there."""
        path, fd = self.claim_new()
        try:
            yield path
        finally:
            if path.exists():
                remove_quietly(path)
            os.close(fd)

    def claim_new(self) -> tuple[Path, int]:
        """The directory, and the descriptor that holds it until it is closed."""
        path = self._making / secrets.token_hex(8)
        # Under the lock, or a sweep could come between the making and the claiming.
        with _held(self._making, fcntl.LOCK_EX):
            path.mkdir(mode=0o700)
            return path, _claim(path)

    def sweep(self) -> int:
        """Remove what the dead left half-made; how many. What is alive is left alone."""
        litter: list[tuple[Path, int]] = []
        with suppress(Busy), _held(self._making, fcntl.LOCK_EX, wait_s=0):
            for name in os.listdir(self._making):
                path = self._making / name
                with suppress(OSError):
                    litter.append((path, _claim(path)))
        removed = 0
        for path, fd in litter:
            removed += remove_quietly(path)
            os.close(fd)
        return removed


def _claim(path: Path) -> int:
    """Raises BlockingIOError when somebody holds it."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def _held(
    path: Path,
    kind: int,
    *,
    wait_s: float | None = None,
    while_waiting: Callable[[], None] | None = None,
) -> Iterator[None]:
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _take(fd, kind, wait_s, while_waiting)
        yield
    finally:
        os.close(fd)


def _take(
    fd: int, kind: int, wait_s: float | None, while_waiting: Callable[[], None] | None
) -> None:
    if wait_s is None and while_waiting is None:
        fcntl.flock(fd, kind)
        return
    deadline = None if wait_s is None else time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline is not None and time.monotonic() >= deadline:
                raise Busy(
                    "somebody is adding an image to the store",
                    hint="try again when that is done",
                ) from None
            if while_waiting is not None:
                while_waiting()
            time.sleep(_PAUSE_S)
        else:
            return
