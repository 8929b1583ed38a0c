"""Notices callbacks that held an event loop: a blocking call where one must not be.

Times every callback of every asyncio loop in the process, the embedded engine's own thread
included. It costs well under a microsecond a callback, where asyncio's debug mode would change
what is tested.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

# Far above what a busy two-core machine does to an innocent callback, far below a wait anybody
# would accept from the loop: sleeping, waiting for a process, or copying a large file there.
LIMIT_S = 1.0

_slow: list[str] = []
_original = asyncio.Handle._run


def _timed(self: Any) -> None:
    began = time.perf_counter()
    _original(self)
    took = time.perf_counter() - began
    if took > LIMIT_S:
        _slow.append(f"{took:.2f} s in {_named(self)}")


def _named(handle: Any) -> str:
    """A step of a task is shown by its coroutine; anything else by its callback."""
    task = getattr(getattr(handle, "_callback", None), "__self__", None)
    return repr(task if isinstance(task, asyncio.Task) else handle)


def install() -> None:
    asyncio.Handle._run = _timed  # type: ignore[method-assign]


def drain() -> list[str]:
    """What was too slow since the last call."""
    found = _slow[:]
    _slow.clear()
    return found
