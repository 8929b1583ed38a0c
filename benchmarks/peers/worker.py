"""One contestant in a process of its own: reads turns as JSON lines, answers what they took.

`python -m benchmarks.peers.worker MODULE:CLASS DISTRIBUTION`. A turn names a verb and its numbers;
the answer has the values of each operation (milliseconds, or times per second) and the failures, by
reason. The worker times itself, so that the way of an answer is not counted. The first line says
which verbs the contestant has: the methods of its class.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import sys
import threading
import time
from collections import defaultdict
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

VERBS: Final = ("create", "exec_true", "destroy", "oneshot", "write", "read")
CREATE, EXEC, DESTROY, ONESHOT = "create", "exec", "destroy", "oneshot"
FIRST: Final = "first"
RATE: Final = "rate"
_REASON_CHARACTERS: Final = 300
_REMOVAL_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 15.0
_SMALLEST: Final[dict[str, dict[str, Any]]] = {
    "session": {"execs": 1},
    "first": {"count": 1},
    "oneshot": {},
}


class Loop:
    """An event loop in a thread, so that asynchronous peers are called like the others."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


class Turns:
    """What a contestant does in one turn, by the name of the turn."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer
        self.values: dict[str, list[float]] = defaultdict(list)
        self.failures: dict[str, list[str]] = defaultdict(list)
        self._guard = threading.Lock()

    # ---- the turns

    def session(self, execs: int) -> None:
        """Create a sandbox, run `true` in it, destroy it."""
        began = time.perf_counter()
        box = self._timed(CREATE, self._create)
        try:
            self._timed(EXEC, lambda: self._peer.exec_true(box))
            if hasattr(self._peer, "create"):
                self.values[FIRST].append((time.perf_counter() - began) * 1000)
            for _ in range(execs - 1):
                self._timed(EXEC, lambda: self._peer.exec_true(box))
        finally:
            self._timed(DESTROY, lambda: self._destroy(box))

    def oneshot(self) -> None:
        self._timed(ONESHOT, self._peer.oneshot)

    def files(self, sizes: list[tuple[str, int, int]]) -> None:
        """Write and read files: a label, bytes and a number of times for each size."""
        box = self._create()
        try:
            self._peer.write(box, "first", b"0")  # pays for what no cache holds yet
            for label, size, times in sizes:
                data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
                for number in range(times):
                    name = f"{size}-{number}"
                    self._timed(f"write {label}", partial(self._peer.write, box, name, data))
                    back = self._timed(f"read {label}", partial(self._peer.read, box, name))
                    if back != data:
                        raise RuntimeError("the file that was read is not the one that was written")
        finally:
            self._remove([box])

    def rate(self, sandboxes: int, seconds: float) -> None:
        """Count the commands that so many sandboxes run in a second, each driven by a thread."""
        boxes: list[Any] = []
        try:
            for _ in range(sandboxes):
                boxes.append(self._create())
                self._peer.exec_true(boxes[-1])
            done = [0] * sandboxes
            began = time.monotonic()

            def drive(number: int) -> None:
                while time.monotonic() < began + seconds:
                    self._peer.exec_true(boxes[number])
                    done[number] += 1

            self._in_threads([partial(drive, n) for n in range(sandboxes)], RATE)
            self.values[RATE].append(sum(done) / (time.monotonic() - began))
        finally:
            self._remove(boxes)

    def first(self, count: int, gap_s: float, label: str) -> None:
        """Time from create to the result of the first command, with starts `gap_s` apart."""
        boxes: list[Any] = []
        begin = time.monotonic()

        def first_command(number: int) -> None:
            time.sleep(max(0.0, begin + number * gap_s - time.monotonic()))
            began = time.perf_counter()
            box = self._create()
            with self._guard:
                boxes.append(box)
            self._peer.exec_true(box)
            took = (time.perf_counter() - began) * 1000
            with self._guard:
                self.values[label].append(took)

        self._in_threads([partial(first_command, n) for n in range(count)], label)
        self._remove(boxes)

    # ---- how

    def _create(self) -> Any:
        return self._peer.create() if hasattr(self._peer, "create") else None

    def _destroy(self, box: Any) -> None:
        if hasattr(self._peer, "destroy"):
            self._peer.destroy(box)

    def _remove(self, boxes: list[Any]) -> None:
        """Destroy without a measurement.

        Some peers wait ten seconds for a process that ignores SIGTERM: others go on meanwhile.
        """
        works = [partial(self._destroy, box) for box in boxes]
        self._in_threads(works, DESTROY, wait_s=_REMOVAL_S)

    def _timed(self, operation: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        took = (time.perf_counter() - began) * 1000
        if operation not in (CREATE, DESTROY) or hasattr(self._peer, operation):
            self.values[operation].append(took)
        return result

    def _in_threads(
        self, works: Sequence[Callable[[], None]], operation: str, wait_s: float | None = None
    ) -> None:
        """Do all of them at once; with `wait_s`, leave those that take longer to themselves."""

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except Exception as exc:  # noqa: BLE001  (a failure is a result of the comparison)
                with self._guard:
                    self.failures[operation].append(reason(exc))

        threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        deadline = None if wait_s is None else time.monotonic() + wait_s
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))


def reason(exc: BaseException) -> str:
    """Return one line that says what failed."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    first = lines[0] if lines else ""
    return f"{type(exc).__name__}: {first}"[:_REASON_CHARACTERS]


def has(peer: Any) -> list[str]:
    return [verb for verb in VERBS if hasattr(peer, verb)]


def turn(peer: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Take one turn; a failure of the peer is part of the answer.

    With `warm_s` the turn is taken in its smallest size before, and at least so much time passes:
    a pool prepares the next sandbox of a kind that was asked for, and does not keep it for long.
    """
    name, warm_s = request.pop("turn"), request.pop("warm_s", 0.0)
    if warm_s and name in _SMALLEST:
        began = time.monotonic()
        _taken(Turns(peer), name, {**request, **_SMALLEST[name]})
        # On a busy machine the pool needs longer too.
        longer_s = min(3 * (time.monotonic() - began), _LONGEST_PAUSE_S)
        time.sleep(max(warm_s, longer_s))
    began, turns = time.monotonic(), Turns(peer)
    _taken(turns, name, request)
    # Copies: a removal that takes long may still fail.
    return {
        "values": dict(turns.values),
        "failures": dict(turns.failures),
        "seconds": time.monotonic() - began,
    }


def _taken(turns: Turns, name: str, request: dict[str, Any]) -> None:
    try:
        getattr(turns, name)(**request)
    except Exception as exc:  # noqa: BLE001  (a failure is a result of the comparison)
        turns.failures[name].append(reason(exc))


@contextlib.contextmanager
def _answers() -> Iterator[Any]:
    """Keep standard output for answers: whatever a framework prints goes to standard error."""
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        yield output


def main() -> int:
    module, _, name = sys.argv[1].partition(":")
    with _answers() as out:

        def answer(value: dict[str, Any]) -> None:
            out.write(json.dumps(value) + "\n")
            out.flush()

        try:
            peer = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)()
        except Exception as exc:  # noqa: BLE001  (reported to the parent process)
            answer({"absent": reason(exc)})
            return 1
        version = metadata.version(sys.argv[2]) if sys.argv[2] else ""
        answer({"has": has(peer), "version": version})
        for line in sys.stdin:
            answer(turn(peer, json.loads(line)))
        if hasattr(peer, "close"):
            peer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
