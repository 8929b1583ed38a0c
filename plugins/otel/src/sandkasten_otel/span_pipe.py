"""The pipe to the process that encodes and sends spans.

A thread writes the ended spans of `piped_spans.py` in batches to a child, `span_sender.py`: there,
searching contents for secrets and encoding does not hold this interpreter's lock.

The queue is bounded. What a slow or absent collector leaves no room for is dropped and counted, and
a sender that died is started again.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("sandkasten.telemetry")
# A collector that does not answer must not hold up the end of the process.
FLUSH_S: Final = 3.0
# Importing the libraries takes a second, and much longer on a busy machine.
_START_S: Final = 60.0
_RESTART_S: Final = 5.0
_REPORT_S: Final = 60.0
_NOT_STARTED: Final = "the process that sends spans did not start"


class SpanPipe:
    def __init__(self, command: Sequence[str]) -> None:
        """Start the sender. Raise what stops it (see `open_pipe`)."""
        self._command = command
        self._most = _variable("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
        self._batch = min(self._most, _variable("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512))
        self._delay_s = _variable("OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000
        self._queue: deque[tuple[object, ...]] = deque()
        self._dropped = 0
        self._reported = 0.0
        self._wake = threading.Event()
        self._closing = False
        try:
            self._sender = self._start()
        except OSError as exc:
            raise ValueError(f"{_NOT_STARTED}: {exc.strerror}") from exc
        _check_start(self._sender)
        self._thread = threading.Thread(target=self._work, name="spans", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    @property
    def sender_pid(self) -> int:
        return self._sender.pid

    def put(self, span: tuple[object, ...]) -> None:
        """Queue the fields of an `EndedSpan`. Called in the event loop, so it does not wait."""
        queue = self._queue
        if len(queue) >= self._most:
            self._dropped += 1
            return
        queue.append(span)
        if len(queue) >= self._batch and not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Send what is left, for a few seconds."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        deadline = time.monotonic() + FLUSH_S
        self._thread.join(FLUSH_S)
        with suppress(subprocess.TimeoutExpired):
            self._sender.wait(max(0.0, deadline - time.monotonic()))
        _end(self._sender)
        self._report()

    def _forget(self) -> None:
        """Leave the sender to the process that this one was forked from."""
        self._closing = True
        assert self._sender.stdin is not None
        self._sender.stdin.close()
        open_pipe.cache_clear()

    def _work(self) -> None:
        while not self._closing:
            self._wake.wait(self._delay_s)
            self._wake.clear()
            self._send()
        # What ended after the last look.
        self._send()
        assert self._sender.stdin is not None
        self._sender.stdin.close()

    def _send(self) -> None:
        queue = self._queue
        while queue:
            batch = [queue.popleft() for _ in range(min(len(queue), self._batch))]
            try:
                self._write(pickle.dumps(batch, pickle.HIGHEST_PROTOCOL))
            except (OSError, ValueError):  # It has ended, or was not started again.
                self._dropped += len(batch)
                self._restart()
        if self._dropped and time.monotonic() > self._reported + _REPORT_S:
            self._report()

    def _write(self, data: bytes) -> None:
        assert self._sender.stdin is not None
        rest = memoryview(data)
        while rest:
            rest = rest[self._sender.stdin.write(rest) :]

    def _start(self) -> subprocess.Popen[bytes]:
        self._started = time.monotonic()
        # It finds the modules that this process finds. A separate session: an interrupt at the
        # terminal is for this process, which closes the pipe.
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            bufsize=0,
            start_new_session=True,
        )

    def _restart(self) -> None:
        if self._closing or time.monotonic() < self._started + _RESTART_S:
            return
        status = _end(self._sender)
        log.warning("telemetry.sender_restarted", extra={"sandkasten": {"status": status}})
        with suppress(OSError):  # The next batch tries again.
            self._sender = self._start()

    def _report(self) -> None:
        count, self._dropped, self._reported = self._dropped, 0, time.monotonic()
        if count:
            log.warning("telemetry.spans_dropped", extra={"sandkasten": {"count": count}})


@cache
def open_pipe(protocol: str, endpoint: str | None) -> SpanPipe:
    """Return a pipe to what sends over OTLP. What the settings leave open, `OTEL_*` decide.

    One for all engines of this process; it is closed when the process ends. Raise
    ModuleNotFoundError if a library is missing, ValueError if a value is wrong.
    """
    kind = "grpc" if protocol == "grpc" else "http"
    # -P: no module of the current directory.
    command = [sys.executable, "-P", "-m", "sandkasten_otel.span_sender", kind]
    return SpanPipe(command if endpoint is None else [*command, endpoint])


def _check_start(sender: subprocess.Popen[bytes]) -> None:
    """Wait until the sender can send; raise what stopped it."""
    assert sender.stdout is not None
    ready, _, _ = select.select([sender.stdout], [], [], _START_S)
    line = sender.stdout.readline() if ready else b""
    problem = json.loads(line) if line else {"wrong": _NOT_STARTED}
    if not problem:
        return
    _end(sender)
    if "missing" in problem:
        raise ModuleNotFoundError(problem["missing"], name=problem["missing"])
    raise ValueError(problem["wrong"])


def _end(sender: subprocess.Popen[bytes]) -> int:
    sender.kill()
    for file in (sender.stdin, sender.stdout):
        assert file is not None
        file.close()
    return sender.wait()


def _variable(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    return int(text[:9]) if text.isdecimal() and int(text[:9]) else default
