"""Named locks across processes. Each name locks one byte of a file.

The kernel releases a lock when its holder dies. A waiter polls instead of blocking the event loop.
Two names share a byte only if 62 bits of their digests are equal; they would then exclude each
other.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

from sandkasten.disk.file_lock import release_byte, try_lock_byte
from sandkasten.errors import BackendUnavailable
from sandkasten.store.lock_queue import LockQueues

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.store.lock_queue import LockQueue

_WAITS_S: Final = (0.001, 0.05)


class FileLocks:
    """One file of locks. Waiters of one process queue in order and share one descriptor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queues = LockQueues(*_WAITS_S)

    def hold(self, name: str, wait_s: float) -> AbstractAsyncContextManager[None]:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
        # 62 bits: the byte after the locked one must be a valid offset as well.
        at = int.from_bytes(digest[:8], "big") >> 2
        return _LockHolder(self._path, at, self._queues.of(name), wait_s)


class _LockHolder(AbstractAsyncContextManager[None]):
    """Not a generator: those cannot be started while a loop ends, and an engine that closes
    then still has sandboxes to remove.
    """

    def __init__(self, path: Path, at: int, queue: LockQueue, wait_s: float) -> None:
        self._path = path
        self._at = at
        self._queue = queue
        self._wait_s = wait_s
        self._fd = -1

    async def __aenter__(self) -> None:
        await self._queue.enter(self._wait_s, self._take)

    async def __aexit__(self, *_: object) -> None:
        try:
            release_byte(self._fd, self._at)
        finally:
            self._queue.leave()

    async def _take(self) -> bool:
        try:
            fd = try_lock_byte(self._path, self._at)
        except OSError as exc:
            raise BackendUnavailable(
                f"the ledger cannot be locked: {exc}",
                hint="check that the data directory is there, writable and not full",
            ) from exc
        if fd is None:
            return False
        self._fd = fd
        return True
