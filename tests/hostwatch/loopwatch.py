"""Detect callbacks that block an event loop.

Times every callback of every asyncio loop in the process, including the embedded engine's own
thread. Time in which a thread of the process waited for a processor does not count: another thread
may have held the interpreter's lock meanwhile. Nor does time in which other guests of a virtual
machine's host had the processors. Nor does a callback during which the kernel read pages of
programs from the disk, which a cold or full host does at any instruction. Nor does what a test's
own tools did (`of_the_test`), nor a program that a test itself starts or waits for. It costs well
under a microsecond per callback, while asyncio's debug mode would change what is tested.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import resource
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from scripts.distributions import directories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
T = TypeVar("T")

# Far below a wait anybody would accept from the loop: sleeping, waiting for a process, or copying a
# large file there. A virtual machine can stand still for more than a second without being told.
LIMIT_S = 2.0

# Of what the threads have waited for a processor: too dear to be read for every callback.
_LOOK_EVERY_S = 0.2
_thread = threading.local()
# The kernel tells in ticks of 10 ms how much was stolen.
_MANY_TICKS_S = 0.05

_TESTS = tuple(f"{path / 'tests'}/" for path in directories())
_PRODUCT = tuple(f"{path / 'src'}/" for path in directories())

_slow: list[str] = []
_longest: dict[int, tuple[float, str]] = {}
_original = asyncio.Handle._run


def _timed(self: Any) -> None:
    if _longest and threading.get_ident() in _longest:
        _measured(self)
        return
    began = time.perf_counter()
    if began - getattr(_thread, "looked_at", 0.0) > _LOOK_EVERY_S:
        _thread.looked_at, _thread.queued, _thread.faults = began, _queued(), _faults()
        _thread.stolen = stolen_s()
    own = getattr(_thread, "own_s", 0.0)
    _original(self)
    took = time.perf_counter() - began - (getattr(_thread, "own_s", 0.0) - own)
    if took > LIMIT_S and _faults() == _thread.faults:
        waited, stolen = _waited_s(_thread.queued), stolen_s() - _thread.stolen
        if took - waited - stolen > LIMIT_S:
            without = f"{waited:.2f} s of waiting, {stolen:.2f} s stolen"
            _slow.append(f"{took:.2f} s ({without}) in {_named(self)}")


def _measured(self: Any) -> None:
    # Linux counts as used what the host kept from a thread that was running.
    stolen, began = stolen_s(), time.thread_time()
    _original(self)
    took = time.thread_time() - began
    if took > _MANY_TICKS_S:
        took -= min(took, stolen_s() - stolen)
    if took > _longest.get(threading.get_ident(), (took, ""))[0]:
        _longest[threading.get_ident()] = (took, _named(self))


@contextmanager
def measuring(thread: int) -> Iterator[None]:
    """Measure the callbacks of the loop in this thread, and leave them out of `drain`."""
    _longest[thread] = (0.0, "")
    try:
        yield
    finally:
        del _longest[thread]


def longest(thread: int) -> tuple[float, str]:
    """Return the processor time of the longest callback since the last call, and which it was."""
    found, _longest[thread] = _longest[thread], (0.0, "")
    return found


def of_the_test(tool: Callable[P, T]) -> Callable[P, T]:
    """Mark a blocking operation of a test, for example running another program."""

    @functools.wraps(tool)
    def timed(*args: P.args, **options: P.kwargs) -> T:
        if getattr(_thread, "in_own", False):
            return tool(*args, **options)
        began, _thread.in_own = time.perf_counter(), True
        try:
            return tool(*args, **options)
        finally:
            _thread.in_own = False
            _thread.own_s = getattr(_thread, "own_s", 0.0) + time.perf_counter() - began

    return timed


def _of_its_caller(method: Callable[P, T]) -> Callable[P, T]:
    """Mark the calls of a blocking method that a test makes, and not those of the product."""
    own = of_the_test(method)

    @functools.wraps(method)
    def called(*args: P.args, **options: P.kwargs) -> T:
        return (own if _is_called_by_a_test() else method)(*args, **options)

    return called


def _is_called_by_a_test() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and file.startswith(_TESTS + _PRODUCT):
            return file.startswith(_TESTS)
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _queued() -> dict[int, float]:
    """Return how long each thread of this process has waited for a processor, by the kernel."""
    found = {}
    for thread in threading.enumerate():
        if thread.native_id is not None:
            found[thread.native_id] = _queued_of(thread.native_id)
    return found


def _faults() -> int:
    """Return how many pages this process has had to wait for, in all its threads."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def stolen_s() -> float:
    """Return how long this machine's processors had work and were not given to it, all together."""
    try:
        with open("/proc/stat", "rb") as file:
            return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    except OSError as exc:
        if exc.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return 0.0


def _waited_s(before: dict[int, float]) -> float:
    return sum(max(0.0, now - before.get(one, 0.0)) for one, now in _queued().items())


def _queued_of(thread: int) -> float:
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):  # It has ended.
        return 0.0
    except OSError as exc:
        # A test may have used up all descriptors; an error here would end its event loop.
        if exc.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return 0.0


def _named(handle: Any) -> str:
    """Return the coroutine of a task's step, or the callback."""
    task = getattr(getattr(handle, "_callback", None), "__self__", None)
    return repr(task if isinstance(task, asyncio.Task) else handle)


def install() -> None:
    asyncio.Handle._run = _timed  # type: ignore[method-assign]
    for name in ("__init__", "wait", "communicate"):
        setattr(subprocess.Popen, name, _of_its_caller(getattr(subprocess.Popen, name)))


def drain() -> list[str]:
    """Return what was too slow since the last call."""
    found = _slow[:]
    _slow.clear()
    return found
