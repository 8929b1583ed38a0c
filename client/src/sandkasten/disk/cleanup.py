"""Work that finishes although its caller was cancelled, within its own deadline."""

from __future__ import annotations

import asyncio
import concurrent.futures
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

P = ParamSpec("P")
T = TypeVar("T")


async def finish(work: Awaitable[T], hurry: Callable[[], None] | None = None) -> T:
    """Run `work` to its end. A cancellation that arrives meanwhile is raised afterwards; `hurry`
    is called then, to ask the work to give up.

    `work` must bound itself; this only prevents it from being cut short. In a task that was
    cancelled before, `asyncio.timeout` raises CancelledError (Python 3.11.2): clean-up that has a
    deadline and further steps after it is run by this, in its own task.
    """
    task = asyncio.ensure_future(work)
    await ended(task, hurry)
    return task.result()


async def ended(work: asyncio.Future[Any], hurry: Callable[[], None] | None = None) -> None:
    """Wait for the end of `work`, however it ends. Cancellation is handled as by `finish`."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as exc:
            cancelled = exc
            if hurry is not None:
                hurry()
    if not work.cancelled():
        # Retrieve the exception, so that asyncio does not report it as never retrieved.
        work.exception()
    if cancelled is not None:
        raise cancelled


def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Begin blocking work in a thread.

    The future is not a task: the end of a loop cancels every task, and the thread would go on
    unobserved.
    """
    return _begun(None, partial(work, *args, **kwargs))


def in_own_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Begin blocking work that may take minutes in a new thread.

    The threads of the loop are few, and every short work waits for one of them. The caller limits
    how much of such work there is at once.
    """
    pool = concurrent.futures.ThreadPoolExecutor(1, "sandkasten-long")
    begun = _begun(pool, partial(work, *args, **kwargs))
    # The thread ends after the work.
    pool.shutdown(wait=False)
    return begun


def _begun(
    pool: concurrent.futures.ThreadPoolExecutor | None, work: Callable[[], T]
) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(pool, copy_context().run, work)
