"""Clean-up that finishes although its caller was cancelled, within its own deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


async def finish(work: Awaitable[T], hurry: Callable[[], None] | None = None) -> T:
    """Run `work` to its end. A cancellation that arrives meanwhile is raised afterwards; `hurry`
    is called then, to ask the work to give up.

    `work` must bound itself; this only prevents it from being cut short.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            cancelled = exc
            if hurry is not None:
                hurry()
    if cancelled is not None:
        if not task.cancelled():
            # Retrieve the exception, so that asyncio does not report it as never retrieved.
            task.exception()
        raise cancelled
    return task.result()
