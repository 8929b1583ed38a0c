"""Named locks across processes: flock on a file, which the kernel releases when its holder dies.

A waiter polls instead of blocking the event loop. Lock files are removed on release; a holder of a
removed file notices by its inode and retries.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sandkasten.disk.file_lock import try_lock_path
from sandkasten.errors import BackendUnavailable, Busy

if TYPE_CHECKING:
    from pathlib import Path

_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.05


class FileLocks:
    """One directory of locks. Waiters of one process queue in order and share one descriptor."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def hold(self, name: str, wait_s: float) -> AbstractAsyncContextManager[None]:
        # Names come from callers (session keys); a digest is neither a path nor too long.
        path = self._root / hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = asyncio.Lock()
        return _LockHolder(path, queue, wait_s)


class _LockHolder(AbstractAsyncContextManager[None]):
    """Not a generator: those cannot be started while a loop ends, and an engine that closes
    then still has sandboxes to remove.
    """

    def __init__(self, path: Path, queue: asyncio.Lock, wait_s: float) -> None:
        self._path = path
        self._queue = queue
        self._wait_s = wait_s
        self._fd = -1

    async def __aenter__(self) -> None:
        deadline = time.monotonic() + self._wait_s
        if self._wait_s <= 0 and self._queue.locked():
            raise _busy(self._wait_s)
        try:
            async with asyncio.timeout(max(self._wait_s, 1.0)):
                await self._queue.acquire()
        except TimeoutError as exc:
            raise _busy(self._wait_s) from exc
        try:
            self._fd = await _take(self._path, deadline, self._wait_s)
        except BaseException:
            self._queue.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        try:
            # Unlinked while locked: a waiter that opened this file earlier sees that it is gone and
            # opens the new one.
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
        finally:
            self._queue.release()


async def _take(path: Path, deadline: float, wait_s: float) -> int:
    pause = _FIRST_WAIT_S
    while (fd := _try(path)) is None:
        if time.monotonic() >= deadline:
            raise _busy(wait_s)
        # With jitter, or processes that started together stay in step.
        await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311
        pause = min(pause * 2, _LONGEST_WAIT_S)
    return fd


def _try(path: Path) -> int | None:
    try:
        return try_lock_path(path)
    except OSError as exc:
        raise BackendUnavailable(
            f"the ledger cannot be locked: {exc}",
            hint="check that the data directory is there, writable and not full",
        ) from exc


def _busy(wait_s: float) -> Busy:
    return Busy(
        f"another process is working on this sandbox (waited {wait_s:g} s)",
        hint="try again in a moment",
    )
