"""Work in a thread that is always waited for, because a thread cannot be stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
P = ParamSpec("P")


async def to_the_end(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run to the end; a cancellation is raised when the thread is done, before its files are
    removed.
    """
    return await calling_off(lambda: None, work, *args, **kwargs)


async def calling_off(
    hurry: Callable[[], None], work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run work that can be told to give up; `hurry` tells it."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            cancelled = exc
            hurry()
    if cancelled is not None:
        # Retrieve the exception, so that asyncio does not report it as never retrieved.
        task.exception()
        raise cancelled
    return task.result()
