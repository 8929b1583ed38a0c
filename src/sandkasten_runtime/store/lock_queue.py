"""The queue of a named lock: waiters of one process wait in order, and the first of them polls."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sandkasten.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class LockQueues:
    """The queues of names that are locked or waited for."""

    def __init__(self, first_wait_s: float, longest_wait_s: float) -> None:
        """The times between two polls: the first, and what they double up to."""
        self._waits_s = first_wait_s, longest_wait_s
        self._queues: WeakValueDictionary[str, LockQueue] = WeakValueDictionary()

    def of(self, name: str) -> LockQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = LockQueue(*self._waits_s)
        return queue


class LockQueue:
    def __init__(self, first_wait_s: float, longest_wait_s: float) -> None:
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._turn = asyncio.Lock()

    async def enter(self, wait_s: float, take: Callable[[], Awaitable[bool]]) -> None:
        """Call `take` until it returns True; raise Busy after `wait_s`. Call `leave` after it."""
        deadline = time.monotonic() + wait_s
        if wait_s <= 0 and self._turn.locked():
            raise _busy(wait_s)
        try:
            async with asyncio.timeout(max(wait_s, 1.0)):
                await self._turn.acquire()
        except TimeoutError as exc:
            raise _busy(wait_s) from exc
        try:
            pause = self._first_wait_s
            while not await take():
                if time.monotonic() >= deadline:
                    raise _busy(wait_s)
                # With jitter, or processes that started together stay in step.
                await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311
                pause = min(pause * 2, self._longest_wait_s)
        except BaseException:
            self._turn.release()
            raise

    def leave(self) -> None:
        self._turn.release()


def _busy(wait_s: float) -> Busy:
    return Busy(
        f"another process is working on this sandbox (waited {wait_s:g} s)",
        hint="try again in a moment",
    )
