"""Asynchronous streams and blocks, driven by a thread without a loop.

A generator with a deadline or a task group inside must be entered, advanced and left by the same
task. So each gets its own task on the loop thread: `Pump` passes items from a stream, `Held`
keeps an `async with` open. `take` raises what the stream raises. A pump that is dropped without
`close` cancels its task and does not wait for it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from sandkasten.client.blocking.loop_thread import LoopThread, loop_thread
from sandkasten.client.stream_close import closing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T")

# Enough to let the two threads work side by side, few enough that a slow reader is felt.
DEPTH: Final = 16


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


async def _carry(source: AsyncIterator[T], queue: asyncio.Queue[T | _End]) -> None:
    try:
        async with closing(source):
            async for item in source:
                await queue.put(item)
    except Exception as exc:  # noqa: BLE001  (it is raised again, in the thread that takes)
        await queue.put(_End(exc))
    else:
        await queue.put(_End(None))


async def _batch(queue: asyncio.Queue[T | _End]) -> list[T | _End]:
    """Return all available items, at least one: one switch of threads for many items."""
    items = [await queue.get()]
    while not queue.empty():
        items.append(queue.get_nowait())
    return items


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class Pump(Generic[T]):
    """Items of an asynchronous stream, for a thread; the stream starts at the first `take`."""

    def __init__(self, source: AsyncIterator[T]) -> None:
        self._source = source
        self._here: deque[T | _End] = deque()
        self._thread: LoopThread | None = None
        self._queue: asyncio.Queue[T | _End] | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    async def _begin(self) -> asyncio.Task[None]:
        self._queue = asyncio.Queue(DEPTH)
        return asyncio.create_task(_carry(self._source, self._queue))

    def take(self) -> T:
        """Return the next item; StopIteration at the end."""
        if self._ended:
            raise StopIteration
        if self._queue is None:
            self._thread = loop_thread()
            self._task = self._thread.run(self._begin())
            weakref.finalize(self, _drop, self._thread, self._task)
        if not self._here:
            assert self._thread is not None
            assert self._queue is not None
            self._here.extend(self._thread.run(_batch(self._queue)))
        item = self._here.popleft()
        if not isinstance(item, _End):
            return item
        self._ended = True
        if item.error is not None:
            raise item.error
        raise StopIteration

    def close(self) -> None:
        self._ended = True
        self._here.clear()
        if self._task is not None and self._thread is not None:
            self._thread.run(_stop(self._task))


def _drop(thread: LoopThread, task: asyncio.Task[None]) -> None:
    with suppress(RuntimeError):  # The loop is closed: the process is ending.
        thread.loop.call_soon_threadsafe(task.cancel)


class Held:
    """An `async with` block that a thread enters and leaves."""

    def __init__(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self._manager = manager
        self._thread: LoopThread | None = None
        self._task: asyncio.Task[None] | None = None
        self._leave: asyncio.Event | None = None

    def enter(self) -> None:
        self._thread = loop_thread()
        self._thread.run(self._enter())

    async def _enter(self) -> None:
        inside: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._main(inside, self._leave))
        await asyncio.wait({inside, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not inside.done():
            await self._task

    async def _main(self, inside: asyncio.Future[None], leave: asyncio.Event) -> None:
        async with self._manager:
            inside.set_result(None)
            await leave.wait()

    def leave(self) -> None:
        if self._thread is not None and self._task is not None:
            self._thread.run(self._depart())

    async def _depart(self) -> None:
        if self._leave is not None and self._task is not None:
            self._leave.set()
            await self._task
