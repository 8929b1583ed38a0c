"""Blocking work that makes something, done in a thread and undone when nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from sandkasten.errors import SandkastenError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def whole_or_nothing(make: Callable[[], T], undo: Callable[[], object]) -> T:
    """What `make` made. Cancelled, it is undone before the cancellation goes on."""
    making = asyncio.ensure_future(asyncio.to_thread(make))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        # The thread cannot be stopped half-way; wait for its end, then undo what it made.
        with contextlib.suppress(SandkastenError):
            await asyncio.shield(making)
        await asyncio.shield(asyncio.to_thread(undo))
        raise
