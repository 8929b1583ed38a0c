"""Work that is always waited for, also if the caller is cancelled: threads cannot be stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from sandkasten.disk.cleanup import finish, in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

T = TypeVar("T")
P = ParamSpec("P")


async def to_the_end(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a thread; raise a cancellation only when the thread is done."""
    return await finish(in_thread(work, *args, **kwargs))


async def all_or_none(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait for all tasks to end. The first failure, or a cancellation, cancels the others."""
    failure: BaseException | None = None
    while pending := {task for task in tasks if not task.done()}:
        try:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError as exc:
            cause: BaseException | None = exc
        else:
            failures = (task.exception() for task in done if not task.cancelled())
            cause = next((exc for exc in failures if exc is not None), None)
        if failure is None and cause is not None:
            failure = cause
            for task in pending:
                task.cancel()
    if failure is not None:
        raise failure
