"""Close descriptors of dead sandboxes in a background thread.

Closing the last reference to a mount namespace unmounts everything in it, which takes a millisecond
or more. Nothing is visible or running by then, so no caller needs to wait. If the process ends
first, the kernel closes all its descriptors.
"""

from __future__ import annotations

import contextlib
import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_queue: SimpleQueue[tuple[int, Callable[[int], None]]] = SimpleQueue()
_lock = threading.Lock()
_owner = 0
"""The process that owns the thread: a fork does not inherit it."""


def _nothing(descriptor: int) -> None:
    del descriptor


def close_later(descriptor: int | None, *, after: Callable[[int], None] = _nothing) -> None:
    """Close the descriptor after `after` has run with it, in the order of the calls."""
    global _owner
    with _lock:
        if _owner != os.getpid():
            try:
                threading.Thread(target=_run, name="sandkasten-closing", daemon=True).start()
            except RuntimeError:
                # The interpreter is shutting down, or the host has no thread left.
                if descriptor is not None:
                    _close(descriptor, after)
                return
            _owner = os.getpid()
    if descriptor is not None:
        _queue.put((descriptor, after))


def _run() -> None:
    while True:
        _close(*_queue.get())


def _close(descriptor: int, after: Callable[[int], None]) -> None:
    with contextlib.suppress(OSError):
        after(descriptor)
    with contextlib.suppress(OSError):
        os.close(descriptor)
