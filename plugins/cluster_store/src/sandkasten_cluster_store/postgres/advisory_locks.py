"""Named locks across machines: advisory locks of one connection to the database, its session.

PostgreSQL releases them when the connection ends, so they end with the process or the machine that
holds them. If the session is lost, the tasks that hold its locks are interrupted with
BackendUnavailable before another process can take these locks. The exception is a restart of the
server, which releases all locks at once: every holder is then interrupted as soon as it notices.
Waiters of one process queue in order, and the first of them polls.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable, SandkastenError
from sandkasten_runtime.store.lock_queue import LockQueues

if TYPE_CHECKING:
    from types import TracebackType

    from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase
    from sandkasten_runtime.store.lock_queue import LockQueue

_WAITS_S: Final = (0.002, 0.1)


class AdvisoryLocks:
    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._queues = LockQueues(*_WAITS_S)
        self._holders: set[AdvisoryHolder] = set()
        self._releasing: set[asyncio.Task[None]] = set()
        self.losses = 0
        """How many sessions were lost."""
        database.on_session_lost.append(self._lost)

    def hold(self, name: str, wait_s: float) -> AdvisoryHolder:
        """Hold the name while the block lasts; else raise Busy."""
        return AdvisoryHolder(self, self._database.lock_key(name), self._queues.of(name), wait_s)

    async def take(self, key: int) -> bool:
        """Return whether the lock was taken now. A caller that is cancelled does not keep it."""
        sql = "SELECT pg_try_advisory_lock($1)"
        attempt = asyncio.ensure_future(self._database.in_session(sql, key))
        try:
            return bool(await asyncio.shield(attempt))
        except asyncio.CancelledError:
            with suppress(SandkastenError):
                if await attempt:
                    await self._release(key)
            raise

    async def give_back(self, key: int) -> None:
        """Release a lock, also if the caller is cancelled meanwhile. Never raise another error: a
        lock that cannot be released has ended with its session.
        """
        task = asyncio.create_task(self._release(key))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)
        await asyncio.shield(task)

    async def _release(self, key: int) -> None:
        with suppress(SandkastenError):
            await self._database.in_session("SELECT pg_advisory_unlock($1)", key)

    def add(self, holder: AdvisoryHolder) -> None:
        self._holders.add(holder)

    def remove(self, holder: AdvisoryHolder) -> None:
        self._holders.discard(holder)

    def _lost(self) -> None:
        self.losses += 1
        for holder in [*self._holders]:
            holder.interrupt()


class AdvisoryHolder(AbstractAsyncContextManager[None]):
    """Not a generator: those cannot be started while a loop ends, and an engine that closes
    then still has sandboxes to remove.
    """

    def __init__(self, locks: AdvisoryLocks, key: int, queue: LockQueue, wait_s: float) -> None:
        self._locks = locks
        self._key = key
        self._queue = queue
        self._wait_s = wait_s
        self._task: asyncio.Task[object] | None = None
        self._cancelled_before = 0
        self.is_lost = False

    async def __aenter__(self) -> None:
        await self._queue.enter(self._wait_s, self._taken)
        self._task = asyncio.current_task()
        self._cancelled_before = 0 if self._task is None else self._task.cancelling()
        self._locks.add(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._locks.remove(self)
        try:
            if not self.is_lost:
                await self._locks.give_back(self._key)
        finally:
            self._queue.leave()
        if not self.is_lost or self._task is None:
            return
        if self._task.uncancel() <= self._cancelled_before and kind is asyncio.CancelledError:
            raise BackendUnavailable(
                "the connection to the database was lost while it held a lock",
                hint="try again; what was begun is finished or removed",
                store="postgres",
            ) from error

    def interrupt(self) -> None:
        """Cancel the task that holds the lock: another process may have it now.

        Once: while the task cleans up, the next connection may be lost as well.
        """
        if self.is_lost:
            return
        self.is_lost = True
        if self._task is not None:
            self._task.cancel()

    async def _taken(self) -> bool:
        losses = self._locks.losses
        if not await self._locks.take(self._key):
            return False
        if losses == self._locks.losses:
            return True
        # It may have been a lock of the session that was lost before we knew that we had it.
        await self._locks.give_back(self._key)
        return False
