"""A command in a live gVisor sandbox: through our runner, and by `runsc exec`; interleaved."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sandkasten import Sandbox

if TYPE_CHECKING:
    from benchmarks.peers.runsc import Runsc
    from benchmarks.plan import Plan
    from benchmarks.samples import Samples

CREATE = "create on gVisor"
ARGV, SHELL = "exec true on gVisor (argv)", "exec true on gVisor (shell)"


def measure(samples: Samples, peer: Runsc, plan: Plan) -> None:
    deadline = time.monotonic() + plan.section_s
    with samples.timed(CREATE, "runsc"):
        name = peer.create()
    try:
        with samples.timed(CREATE, "sandkasten"):
            box = Sandbox(backend="gvisor")
        with box:
            # The first of each pays for files that no cache holds yet.
            box.exec(["/bin/true"])
            box.exec("true")
            peer.exec_true(name)
            for _ in range(plan.rounds * plan.execs):
                with samples.timed(ARGV, "sandkasten"):
                    assert box.exec(["/bin/true"]).exit_code == 0
                with samples.timed(SHELL, "sandkasten"):
                    assert box.exec("true").exit_code == 0
                began = time.perf_counter()
                peer.exec_true(name)
                took = (time.perf_counter() - began) * 1000
                # It has one way to run a command; both of ours are held against it.
                samples.add(ARGV, "runsc", took)
                samples.add(SHELL, "runsc", took)
                if time.monotonic() > deadline:
                    break
    finally:
        peer.destroy(name)
