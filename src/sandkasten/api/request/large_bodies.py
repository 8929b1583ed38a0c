"""Parse large JSON bodies one at a time, in a thread, with turns for the tenants.

The parser keeps the interpreter to itself: several of them at once, each in a thread, would keep
the event loop from running for as long as all of them take.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")
LARGE_BYTES: Final = 256 * 1024
"""Parsing less takes one or two milliseconds."""


class LargeBodies:
    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        # Of each tenant, one body waits for the turn, and the others wait for that one.
        self._of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def parse(self, tenant: str, work: Callable[[], R]) -> R:
        """Return the result of `work`. A caller that is cancelled while it waits gives way."""
        async with self._of.setdefault(tenant, asyncio.Lock()):
            await self._turn.acquire()
            parsing = asyncio.ensure_future(asyncio.to_thread(work))
            # No thread can be cancelled: the turn ends with the work, not with the caller.
            parsing.add_done_callback(lambda _: self._turn.release())
            return await asyncio.shield(parsing)
