"""Code in a kernel over HTTP, and in a bare ipykernel by Jupyter's own client, in turns.

The bare kernel has no sandbox and no daemon. Its client is a process of the Python that the host
image's sandboxes have, so both use the same ipykernel. Warm: `1+1` in a kernel that runs. First: a
kernel that starts; of ours, the first call in a new sandbox.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from benchmarks.http import Raw, daemon
from sandkasten import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.plan import Plan
    from benchmarks.samples import Samples

WARM, FIRST = "run_code 1+1 over HTTP, warm", "first run_code in a sandbox"
OURS, BARE = "sandkasten", "ipykernel"
_PYTHON: Final = "/usr/bin/python3"
_BODY: Final = {"code": "1+1"}
_UNCOUNTED: Final = 5
_WARM_ROUNDS: Final = 20
# Takes a line for each measurement, and answers with its milliseconds.
_CLIENT: Final = """
import os, sys, time
from jupyter_client.manager import start_new_kernel

def warm():
    sent = client.execute("1+1")
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != sent:
            continue
        if message["content"].get("execution_state") == "idle":
            break
    client.get_shell_msg(timeout=60)

def first():
    other, its_client = start_new_kernel(kernel_name="python3")
    yield
    its_client.stop_channels()
    other.shutdown_kernel(now=True)

manager, client = start_new_kernel(kernel_name="python3")
print("ready", flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    starting = None
    if line.strip() == "warm":
        warm()
    else:
        starting = first()
        next(starting)
    print((time.perf_counter() - began) * 1000, flush=True)
    for _ in starting or ():
        pass
client.stop_channels()
manager.shutdown_kernel(now=True)
# The client's own finalizer would complain at the end.
os._exit(0)
"""


def measure(samples: Samples, plan: Plan, scratch: Path) -> None:
    with daemon(scratch / "code") as url, Sandbox(url=url) as box, bare_kernel() as bare:
        with Raw(url, f"/v1/sessions/{box.id}/code", _BODY) as raw:
            deadline = time.monotonic() + plan.section_s / 2
            for number in range(-_UNCOUNTED, plan.rounds * _WARM_ROUNDS):
                took, bare_took = _timed(raw), bare.ask("warm")
                if number >= 0:
                    samples.add(WARM, OURS, took)
                    samples.add(WARM, BARE, bare_took)
                if time.monotonic() > deadline:
                    break
        deadline = time.monotonic() + plan.section_s / 2
        for _ in range(plan.rounds):
            with Sandbox(url=url) as new, Raw(url, f"/v1/sessions/{new.id}/code", _BODY) as raw:
                samples.add(FIRST, OURS, _timed(raw))
            samples.add(FIRST, BARE, bare.ask("first"))
            if time.monotonic() > deadline:
                break


def _timed(raw: Raw) -> float:
    began = time.perf_counter()
    answer = raw.ask()
    took = (time.perf_counter() - began) * 1000
    assert answer["text"] == "2", answer
    return took


class BareKernel:
    """The process of Jupyter's client."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, what: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return float(self.read())

    def read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("Jupyter's client ended; it needs python3-ipykernel")
        return line


@contextmanager
def bare_kernel() -> Iterator[BareKernel]:
    process = subprocess.Popen(
        [_PYTHON, "-c", _CLIENT],
        # Otherwise each kernel warns of its debugger.
        env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    try:
        kernel = BareKernel(process)
        kernel.read()
        yield kernel
    finally:
        # The end of its input ends it, and its kernel.
        process.stdin.close()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
