"""Memory: of an idle session, and of the process that embeds us while output floods."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import rows
from benchmarks.peers import bwrap, ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers import Peers
    from benchmarks.plan import Plan
    from benchmarks.samples import Samples

# Freed pages and finished helpers come back to the count within this time.
_SETTLE_S = 1.5
MIB = 1 << 20


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable")


def idle(samples: Samples, peers: Peers, plan: Plan) -> None:
    counted = ours.counted_memory
    _idle(samples, rows.OURS, plan.idle_sessions, ours.create, ours.destroy, counted)
    if peers.bwrap:
        _idle(samples, "bwrap", plan.idle_sessions, bwrap.Box.create, bwrap.Box.destroy)
    if peers.runc is not None:
        _idle(samples, "runc", plan.idle_peers, peers.runc.create, peers.runc.destroy)
    if peers.docker is not None:
        _idle(samples, "docker", plan.idle_peers, peers.docker.create, peers.docker.destroy)


def _idle(
    samples: Samples,
    peer: str,
    count: int,
    create: Callable[[], Any],
    destroy: Callable[[Any], None],
    counted: Callable[[Any], int | None] | None = None,
) -> None:
    """Record MiB of a session: by what the whole machine has left, and by the session's cgroup."""
    destroy(create())  # what is loaded once and stays is not a session's
    time.sleep(_SETTLE_S)
    before = _available()
    sessions: list[Any] = []
    try:
        for _ in range(count):
            sessions.append(create())  # noqa: PERF401  (what was made is destroyed on failure)
        time.sleep(_SETTLE_S)
        # Everything counts here, noise of the machine too.
        samples.add(rows.IDLE, peer, (before - _available()) / count / MIB)
        for session in sessions if counted else ():
            assert counted is not None
            if (memory := counted(session)) is not None:
                samples.add(rows.IDLE_CGROUP, peer, memory / MIB)
    finally:
        for session in sessions:
            destroy(session)


def growth_under_output(samples: Samples, plan: Plan) -> None:
    """Record how much a fresh embedding process grows at its peak while a command writes."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.footprint", str(plan.output_bytes)],
        check=True,
        capture_output=True,
        timeout=180,
    )
    for how, grown in json.loads(done.stdout).items():
        samples.add(rows.GROWTH, f"{rows.OURS} {how}", grown / MIB)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def _flood(output_bytes: int) -> dict[str, int]:
    box = ours.create()
    try:
        box.exec("head -c 8000000 /dev/zero")
        for _ in box.exec_stream("head -c 8000000 /dev/zero"):
            pass
        start = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        done = box.exec(f"head -c {output_bytes} /dev/zero")
        assert done.exit_code == 0, done
        waited = _status("VmHWM") - start
        Path("/proc/self/clear_refs").write_text("5")
        for _ in box.exec_stream(f"head -c {output_bytes} /dev/zero"):
            pass
        return {"exec": waited, "stream": _status("VmHWM") - start}
    finally:
        ours.destroy(box)


if __name__ == "__main__":
    print(json.dumps(_flood(int(sys.argv[1]))))
