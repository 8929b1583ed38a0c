"""What takes the kernel a while after the death of a sandbox, without anybody waiting for it.

The last reference to a mount namespace unmounts all that is in it, a millisecond or more. Nothing
is visible or running by then, so it is left to a thread of its own; a process that ends first
leaves it to the kernel, which closes all its descriptors.
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
"""The process that has the thread: a fork does not inherit it."""


def _nothing(descriptor: int) -> None:
    del descriptor


def close_later(descriptor: int | None, *, after: Callable[[int], None] = _nothing) -> None:
    """Close it, once `after` has been done with it; in the order of the calls."""
    global _owner
    with _lock:
        if _owner != os.getpid():
            try:
                threading.Thread(target=_run, name="sandkasten-closing", daemon=True).start()
            except RuntimeError:
                # The interpreter is ending, or the host has no thread left to give.
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
