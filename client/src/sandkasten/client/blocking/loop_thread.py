"""One event loop in one background thread, for synchronous code.

Knows nothing about sandboxes: it runs coroutines for threads without a loop. `run` hands over a
coroutine and waits; it raises what the coroutine raises. Ctrl-C while waiting cancels the
coroutine, lets it clean up, and then raises KeyboardInterrupt. After `os.fork` the child gets a
loop of its own on first use. At interpreter exit the loop is closed within a limited time.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from sandkasten.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

# A cancelled call may still have to reach the sandbox. Longer than any one round trip,
# short enough that a second Ctrl-C is not needed.
CANCEL_GRACE_S: Final = 5.0
# More than an engine takes to close at its longest.
EXIT_GRACE_S: Final = 4.0


class _Handoff(Generic[T]):
    """One coroutine on its way to the loop thread, and its result on the way back.

    Costs two thirds of `run_coroutine_threadsafe`, which builds a second future with a condition
    variable and chains it to the task; here a lock is enough.
    """

    __slots__ = ("_coroutine", "_done", "_error", "_loop", "_task", "_value")

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._done = threading.Lock()
        self._done.acquire()
        self._task: asyncio.Task[T] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._error = asyncio.CancelledError()
        else:
            self._error = task.exception()
            if self._error is None:
                self._value = task.result()
        self._done.release()

    def run(self) -> T:
        try:
            self._loop.call_soon_threadsafe(self._begin)
        except RuntimeError:
            self._coroutine.close()  # The loop is closed: the process is ending.
            raise
        try:
            self._done.acquire()
        except BaseException:
            # Only a signal handler can raise here (KeyboardInterrupt, or one of the user's).
            self._loop.call_soon_threadsafe(self._cancel)
            self._done.acquire(timeout=CANCEL_GRACE_S)
            raise
        if self._error is not None:
            try:
                raise self._error
            finally:
                # The traceback refers to this frame; without this the two keep each other alive.
                self._error = None
        return self._value  # type: ignore[return-value]

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class _Workers(ThreadPoolExecutor):
    """Threads for blocking work; at interpreter exit, when none can start, the loop's own.

    Python ends its pools before it calls `atexit`, and closing still has sandboxes to remove.
    Tasks of the loop may run between the two.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if not _exiting:
            try:
                return super().submit(fn, *args, **kwargs)
            except RuntimeError as exc:
                # The other one is that no thread could be started; the work is queued then.
                if "cannot schedule new futures" not in str(exc):
                    raise
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as exc:  # noqa: BLE001  (as the pool itself does it)
            done.set_exception(exc)
        return done


class LoopThread:
    """A running loop and the thread it runs in."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_Workers(thread_name_prefix="sandkasten-worker"))
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._main, args=(ready,), name="sandkasten-loop", daemon=True
        )
        self._thread.start()
        ready.wait()

    def _main(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(ready.set)
        self.loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop and wait for its end."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise InvalidRequest(
                "a blocking Sandbox was used inside the event loop that serves it",
                hint="use AsyncSandbox in asynchronous code",
            )
        return _Handoff(self.loop, coroutine).run()

    def close(self) -> None:
        """Cancel what still runs, let it clean up for a bounded time, and stop."""
        if self._thread.is_alive():
            with suppress(RuntimeError):
                future = asyncio.run_coroutine_threadsafe(self._wind_down(), self.loop)
                with suppress(TimeoutError, asyncio.CancelledError):
                    future.result(EXIT_GRACE_S)
                self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(EXIT_GRACE_S)
        if not self._thread.is_alive() and not self.loop.is_closed():
            self.loop.close()

    async def _wind_down(self) -> None:
        current = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not current]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        # After the tasks, as `asyncio.run` does it: a generator that a task is inside of
        # cannot be closed.
        await self.loop.shutdown_asyncgens()


_lock = threading.Lock()
_current: LoopThread | None = None
_abandoned: list[LoopThread] = []
_exiting = False


def loop_thread() -> LoopThread:
    """Return the loop of this process, started on first use."""
    global _current
    if _current is None:
        with _lock:
            if _current is None:
                _current = LoopThread()
    return _current


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on this process's loop thread and wait for it."""
    return loop_thread().run(coroutine)


def _forget_after_fork() -> None:
    """Drop the loop in a forked child, without closing it.

    The thread does not exist in the child, and its epoll descriptor is the parent's too: closing
    the loop would deregister the parent's descriptors.
    """
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _abandoned.append(_current)
        _current = None


def _close_at_exit() -> None:
    global _exiting
    _exiting = True
    if _current is not None:
        _current.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_close_at_exit)
