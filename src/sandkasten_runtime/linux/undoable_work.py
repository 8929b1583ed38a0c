"""Blocking work in a thread that is undone when its caller is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from sandkasten.disk.cleanup import ended, in_own_thread, in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def whole_or_nothing(
    make: Callable[[], T],
    undo: Callable[[], object],
    hurry: Callable[[], None] | None = None,
) -> T:
    """Return what `make` made. If cancelled, undo it before the cancellation continues.

    Work that may take long has `hurry`, which asks it to give up, and a thread of its own.
    """
    making = in_thread(make) if hurry is None else in_own_thread(make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        if hurry is not None:
            hurry()
        # A thread cannot be stopped half-way; wait for its end, then undo what it made.
        with contextlib.suppress(asyncio.CancelledError):
            await ended(making)
        with contextlib.suppress(asyncio.CancelledError):
            await ended(in_thread(undo))
        raise
