"""Bound how many large bodies of a tenant are in memory: of requests, and of answers.

What was received is in memory for as long as its client takes to send the rest, and an answer for
as long as its client takes to read it. Large JSON bodies are parsed one at a time: the parser works
in a thread and keeps the interpreter to itself, so several at once would keep the event loop from
running for as long as all of them take.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from sandkasten.errors import Busy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

R = TypeVar("R")
LARGE_BYTES: Final = 256 * 1024
"""Parsing less takes one or two milliseconds."""
# 128 MB of a tenant, with the default of `http.max_json_mb`.
AT_ONCE: Final = 8
_WAIT_S: Final = 30.0
# A file of 10 MB is in memory three times while it is sent as JSON. About 200 MB of memory.
ANSWERS_AT_ONCE: Final = 4


class LargeBodies:
    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        # One body of each tenant waits for the turn, and the others wait for that one.
        self._of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._answers: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def receiving(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a place. Raise Busy if none becomes free for half a minute."""
        places = self._places.setdefault(tenant, asyncio.Semaphore(AT_ONCE))
        try:
            async with asyncio.timeout(_WAIT_S):
                await places.acquire()
        except TimeoutError as exc:
            raise Busy(
                f"{AT_ONCE} large bodies of this tenant are being received already",
                hint="send them one after the other, or as files to fs/upload",
            ) from exc
        try:
            yield
        finally:
            places.release()

    async def parse(self, tenant: str, work: Callable[[], R]) -> R:
        """Return the result of `work`. A caller that is cancelled while it waits gives way."""
        async with self._of.setdefault(tenant, asyncio.Lock()):
            await self._turn.acquire()
            parsing = asyncio.ensure_future(asyncio.to_thread(work))
            # No thread can be cancelled: the turn ends with the work, not with the caller.
            parsing.add_done_callback(lambda _: self._turn.release())
            return await asyncio.shield(parsing)

    @asynccontextmanager
    async def answering(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn to send a large answer. Only those of one tenant wait for each other."""
        async with self._answers.setdefault(tenant, asyncio.Semaphore(ANSWERS_AT_ONCE)):
            yield
