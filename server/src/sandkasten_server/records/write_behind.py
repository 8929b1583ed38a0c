"""Rows that are written a moment later, all pending ones together: the newest row of each key.

Bounded: if the disk stays full or the database unavailable, and too many rows are pending, the
oldest are dropped and counted in the log. If the process dies, only the rows of the last moment are
lost. `put` never raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

from sandkasten.errors import SandkastenError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

log = logging.getLogger("sandkasten.store")
# Long enough that a burst of short commands becomes one transaction, and short enough that a person
# who looks right afterwards sees it.
DELAY_S: Final = 0.05
# Retry slowly while the disk is full or the database unavailable.
_RETRY_S: Final = 1.0
MOST: Final = 10_000


class WriteBehind(Generic[K, V]):
    """`write` submits rows to the database; rows that failed are submitted again."""

    def __init__(
        self,
        write: Callable[[Sequence[V]], asyncio.Future[None]],
        *,
        delay_s: float = DELAY_S,
        most: int = MOST,
    ) -> None:
        self._write = write
        self._delay_s = delay_s
        self._most = most
        self._waiting: dict[K, V] = {}
        self._on_the_way: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.forgotten = 0

    def put(self, key: K, value: V) -> None:
        self._waiting[key] = value
        if len(self._waiting) > self._most:
            self._forget_oldest()
        self._arm(self._delay_s)

    def push(self) -> None:
        """Submit all pending rows now: every later read sees them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        rows, self._waiting = self._waiting, {}
        future = self._write(list(rows.values()))
        self._on_the_way.add(future)
        future.add_done_callback(lambda done: self._landed(done, rows))

    async def flush(self) -> None:
        """Wait until all rows put so far are written, or raise the error that prevented it."""
        self.push()
        if self._on_the_way:
            # Other callers wait for the same writes: one that is cancelled does not cancel them.
            await asyncio.gather(*map(asyncio.shield, self._on_the_way))

    async def aclose(self) -> None:
        with contextlib.suppress(SandkastenError):
            await self.flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            log.warning("store.forgotten", extra={"sandkasten": {"rows": len(self._waiting)}})

    def _arm(self, delay_s: float) -> None:
        if self._timer is None:
            # Without a loop there is no timer; the next flush writes the row.
            with contextlib.suppress(RuntimeError):
                self._timer = asyncio.get_running_loop().call_later(delay_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self.push()

    def _landed(self, done: asyncio.Future[None], rows: dict[K, V]) -> None:
        self._on_the_way.discard(done)
        if done.cancelled() or done.exception() is not None:
            # Keep a newer row of the same key.
            self._waiting = {**rows, **self._waiting}
            while len(self._waiting) > self._most:
                self._forget_oldest()
            self._arm(_RETRY_S)

    def _forget_oldest(self) -> None:
        del self._waiting[next(iter(self._waiting))]
        self.forgotten += 1
        if self.forgotten == 1 or self.forgotten % self._most == 0:
            log.warning("store.forgotten", extra={"sandkasten": {"rows": self.forgotten}})
