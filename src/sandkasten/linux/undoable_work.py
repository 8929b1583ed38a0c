"""Blocking work in a thread that is undone when its caller is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def whole_or_nothing(make: Callable[[], T], undo: Callable[[], object]) -> T:
    """Return what `make` made. If cancelled, undo it before the cancellation continues."""
    # Not a task: the end of a loop cancels every task, and the thread would go on unobserved.
    loop = asyncio.get_running_loop()
    making = loop.run_in_executor(None, copy_context().run, make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        # A thread cannot be stopped half-way; wait for its end, then undo what it made.
        await _ended(making)
        await _ended(loop.run_in_executor(None, copy_context().run, undo))
        raise


async def _ended(work: asyncio.Future[Any]) -> None:
    """Wait for the end of a thread's work, also when the caller is cancelled once more."""
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({work})
    if not work.cancelled():
        work.exception()
