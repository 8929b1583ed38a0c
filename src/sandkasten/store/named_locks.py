"""Named locks across processes. Each name locks one byte of a file.

The kernel releases a lock when its holder dies. A waiter polls instead of blocking the event loop.
Two names share a byte only if 62 bits of their digests are equal; they would then exclude each
other.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sandkasten.disk.file_lock import release_byte, try_lock_byte
from sandkasten.errors import BackendUnavailable, Busy

if TYPE_CHECKING:
    from pathlib import Path

_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.05


class FileLocks:
    """One file of locks. Waiters of one process queue in order and share one descriptor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def hold(self, name: str, wait_s: float) -> AbstractAsyncContextManager[None]:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
        # 62 bits: the byte after the locked one must be a valid offset as well.
        at = int.from_bytes(digest[:8], "big") >> 2
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = asyncio.Lock()
        return _LockHolder(self._path, at, queue, wait_s)


class _LockHolder(AbstractAsyncContextManager[None]):
    """Not a generator: those cannot be started while a loop ends, and an engine that closes
    then still has sandboxes to remove.
    """

    def __init__(self, path: Path, at: int, queue: asyncio.Lock, wait_s: float) -> None:
        self._path = path
        self._at = at
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
            self._fd = await self._take(deadline)
        except BaseException:
            self._queue.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        try:
            release_byte(self._fd, self._at)
        finally:
            self._queue.release()

    async def _take(self, deadline: float) -> int:
        pause = _FIRST_WAIT_S
        while (fd := self._try()) is None:
            if time.monotonic() >= deadline:
                raise _busy(self._wait_s)
            # With jitter, or processes that started together stay in step.
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311
            pause = min(pause * 2, _LONGEST_WAIT_S)
        return fd

    def _try(self) -> int | None:
        try:
            return try_lock_byte(self._path, self._at)
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
