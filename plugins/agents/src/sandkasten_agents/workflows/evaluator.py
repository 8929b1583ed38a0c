"""Program that evaluates expressions. It is run by path and imports no module of the project.

CEL always terminates, but nested macros over long lists take hours and hold the interpreter lock.
So expressions are evaluated in a process that can be killed, and that the kernel kills when it
exceeds its CPU time or memory, even if the parent is gone.

Frames in both directions: four bytes of length, big-endian, then JSON. In: {"expressions": [...],
"context": {...}}. Out: {"values": [...]} or {"failed": index, "kind": name of the exception,
"message": text}.
"""

from __future__ import annotations

import base64
import datetime
import json
import resource
import signal
import struct
import sys
import types
from functools import lru_cache
from typing import IO, Any

# The library imports its own command line, and with it hundreds of unneeded modules; without them
# the process starts in a quarter of the time.
sys.modules.setdefault("cel.cli", types.ModuleType("cel.cli"))

import cel  # noqa: E402
from cel.stdlib import add_stdlib_to_context  # noqa: E402


def main(cpu_s: float, memory_bytes: int, answer_bytes: int) -> None:
    # Set once for the process: an evaluation frees its memory, or the process dies.
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    # Restore the default action, even if the parent ignores these signals.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # A terminal or a service manager sends these to the whole group; the parent may still want to
    # finish its work. It closes our input when it is done or dies, and then we exit.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while (request := _read(source)) is not None:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        answer = _answer(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if len(answer) > answer_bytes:
            message = f"its value is longer than {answer_bytes} bytes"
            answer = json.dumps({"failed": 0, "kind": "TooLong", "message": message}).encode()
        sink.write(struct.pack(">I", len(answer)) + answer)
        sink.flush()


def _read(source: IO[bytes]) -> Any:
    head = source.read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack(">I", head)
    body = source.read(length)
    return json.loads(body) if len(body) == length else None


@lru_cache(maxsize=256)
def _compiled(expression: str) -> cel.Program:
    return cel.compile(expression)


def _answer(request: Any) -> bytes:
    context = cel.Context(variables=request["context"])
    add_stdlib_to_context(context)
    values = []
    index = 0
    try:
        for index, expression in enumerate(request["expressions"]):  # noqa: B007
            values.append(_compiled(expression).execute(context))
        return _serialized(values).encode()
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is an answer
        kind = type(exc).__name__
        return json.dumps({"failed": index, "kind": kind, "message": str(exc)[:500]}).encode()


def _serialized(values: list[Any]) -> str:
    """Serialize a value. CEL does not keep the order of keys, and output must be deterministic."""
    try:
        return json.dumps({"values": values}, default=_plain, allow_nan=False, sort_keys=True)
    except TypeError:  # Keys of different types cannot be sorted.
        return json.dumps({"values": values}, default=_plain, allow_nan=False)


def _plain(value: Any) -> Any:
    """Convert CEL types that JSON lacks."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, cel.OptionalValue):
        return value.value() if value.has_value() else None
    raise TypeError(f"a value of type {type(value).__name__} is not valid JSON")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
