"""Memory: of an idle session, and of the process that embeds us while output floods."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers import bwrap, ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers import Peers
    from benchmarks.plan import Plan

# Freed pages and finished helpers come back to the count within this time.
_SETTLE_S = 1.5


@dataclass(frozen=True, slots=True)
class Idle:
    peer: str
    sessions: int
    by_available: float
    """Bytes a session by what the whole machine has left: everything counts, noise too."""
    by_cgroup: float | None
    """Bytes a session by the sandbox's own cgroup."""


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable")


def idle(peers: Peers, plan: Plan) -> list[Idle]:
    measured = [
        _idle("sandkasten", plan.idle_sessions, ours.create, ours.destroy, ours.counted_memory)
    ]
    if peers.bwrap:
        found = _idle("bwrap", plan.idle_sessions, bwrap.Box.create, bwrap.Box.destroy)
        measured.append(found)
    if peers.runc is not None:
        measured.append(_idle("runc", plan.idle_peers, peers.runc.create, peers.runc.destroy))
    if peers.docker is not None:
        found = _idle("docker", plan.idle_peers, peers.docker.create, peers.docker.destroy)
        measured.append(found)
    return measured


def _idle(
    peer: str,
    count: int,
    create: Callable[[], Any],
    destroy: Callable[[Any], None],
    counted: Callable[[Any], int | None] | None = None,
) -> Idle:
    destroy(create())  # what is loaded once and stays is not a session's
    time.sleep(_SETTLE_S)
    before = _available()
    sessions: list[Any] = []
    try:
        for _ in range(count):
            sessions.append(create())  # noqa: PERF401  (what was made is destroyed on failure)
        time.sleep(_SETTLE_S)
        taken = before - _available()
        figures = [counted(s) for s in sessions] if counted else []
    finally:
        for session in sessions:
            destroy(session)
    known = [figure for figure in figures if figure is not None]
    return Idle(peer, count, taken / count, sum(known) / len(known) if known else None)


def growth_under_output(output_bytes: int) -> dict[str, int]:
    """How much a fresh embedding process grows, at its peak, while a command writes so much."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.footprint", str(output_bytes)],
        check=True,
        capture_output=True,
        timeout=180,
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


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
