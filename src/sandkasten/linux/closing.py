"""Closing descriptors whose last close takes the kernel a while, without anybody waiting for it.

The last reference to a mount namespace unmounts all that is in it, a millisecond or more. Nothing
is visible or running by then, so it is left to a thread of its own; a process that ends first
leaves it to the kernel, which closes them all.
"""

from __future__ import annotations

import contextlib
import os
import threading
from queue import SimpleQueue

_queue: SimpleQueue[int] = SimpleQueue()
_lock = threading.Lock()
_owner = 0
"""The process that has the thread: a fork does not inherit it."""


def close_later(*descriptors: int | None) -> None:
    global _owner
    with _lock:
        if _owner != os.getpid():
            threading.Thread(target=_run, name="sandkasten-closing", daemon=True).start()
            _owner = os.getpid()
    for descriptor in descriptors:
        if descriptor is not None:
            _queue.put(descriptor)


def _run() -> None:
    while True:
        with contextlib.suppress(OSError):
            os.close(_queue.get())
