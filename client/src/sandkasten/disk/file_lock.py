"""Locks across processes: the kernel releases a lock when its holder closes it or dies.

A lock is held through an open descriptor, on a whole file or on one of its bytes. Raises OSError.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

_RETRY_S: Final = 0.01


def open_lock(path: Path) -> int:
    """Open the lock file, created if missing."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Take the lock, or return False if another holder excludes it."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_lock_path(path: Path) -> int | None:
    """Return a descriptor that holds the lock, or None if another process has it.

    A lock file that was removed before the lock was taken counts as another's.
    """
    fd = open_lock(path)
    try:
        if try_lock(fd) and _is_named(fd, path):
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def try_lock_byte(path: Path, at: int) -> int | None:
    """Return a descriptor that holds the lock of one byte, or None if another descriptor has it.

    The file need not have that byte. One file has any number of locks, so no file is created or
    removed for each of them: that may take longer than the work under the lock.
    """
    fd = open_lock(path)
    try:
        # struct flock: type, origin of the offset, offset, length, and a pid that must be 0.
        wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
        # Not F_SETLK: a process loses such a lock when it closes any descriptor of the file.
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def release_byte(fd: int, at: int) -> None:
    """Release the lock of `try_lock_byte` and close its descriptor.

    Closing the descriptor does not release the lock while a child process has a copy.
    """
    with suppress(OSError):
        _set_byte(fd, fcntl.F_UNLCK, at)
    os.close(fd)


def _set_byte(fd: int, kind: int, at: int) -> None:
    # struct flock: type, from where, start, length, and a pid that must be 0.
    wanted = struct.pack("hhqqi", kind, os.SEEK_SET, at, 1, 0)
    # Not F_SETLK, which a process loses when it closes any descriptor of the file.
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)


def wait_for_lock(
    fd: int,
    *,
    shared: bool = False,
    timeout_s: float | None = None,
    while_waiting: Callable[[], None] | None = None,
) -> bool:
    """Block until the lock is taken; return False after `timeout_s`.

    `while_waiting` is called between attempts and may raise to give up.
    """
    if timeout_s is None and while_waiting is None:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        return True
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not try_lock(fd, shared=shared):
        if deadline is not None and time.monotonic() >= deadline:
            return False
        if while_waiting is not None:
            while_waiting()
        time.sleep(_RETRY_S)
    return True


@asynccontextmanager
async def locked(path: Path, *, shared: bool = False) -> AsyncIterator[None]:
    """Hold the lock for the block; `shared` excludes only exclusive holders.

    Waits by trying again and not in a thread: waiters could occupy every thread of the pool,
    including the one that the holder needs.
    """
    fd = open_lock(path)
    try:
        while not try_lock(fd, shared=shared):  # noqa: ASYNC110  (the holder may be another process)
            await asyncio.sleep(_RETRY_S)
        yield
    finally:
        os.close(fd)


def _is_named(fd: int, path: Path) -> bool:
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    opened = os.fstat(fd)
    return (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)
