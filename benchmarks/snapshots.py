"""Snapshots: how long a sandbox is stopped, and how long a new one takes to start from them.

    .venv/bin/python -m benchmarks.snapshots [DATA_DIR]

A workspace of 500 MB in which 10 MB changed since the last snapshot, once with nothing else in it
and once with 400 MB. Medians of ROUNDS, in turns; ratios are to an ordinary create of the same run,
and to `docker commit` and `docker run` where a Docker Engine answers. Requires root.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sandkasten import Sandbox, Snapshots

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
ROUNDS = 15
CHANGE = "head -c 10M /dev/urandom > changed && sync"
# The one that the tests use; it is not pulled.
DOCKER_IMAGE = os.environ.get("SNAPSHOT_DOCKER_IMAGE", "busybox")


def timed(took: dict[str, list[float]], name: str, work: Callable[[], T]) -> T:
    """Do the work, and add the milliseconds that it took."""
    began = time.perf_counter()
    result = work()
    took.setdefault(name, []).append((time.perf_counter() - began) * 1000)
    return result


def ours(data_dir: str, filled_mb: int) -> dict[str, float]:
    took: dict[str, list[float]] = {}
    where: dict[str, Any] = {"data_dir": data_dir, "url": "embedded", "backend": "local"}
    snapshots = Snapshots(**where)
    with Sandbox(image="host", **where) as box:
        box.exec(f"head -c {filled_mb}M /dev/urandom > filled; sync", check=True)
        for _ in range(ROUNDS):
            box.exec(CHANGE, check=True)
            snapshot = timed(took, "snapshot", box.snapshot)
            took.setdefault("stopped", []).append(snapshot.frozen_ms)
            for name, create in (
                ("create from it", partial(Sandbox, snapshot=snapshot.id)),
                ("ordinary create", partial(Sandbox, image="host")),
            ):
                timed(took, name, partial(create, **where)).close()
            snapshots.delete(snapshot.id)
            method = snapshot.method
    print(f"{filled_mb + 10} MB in the workspace, method {method}")
    return {name: statistics.median(values) for name, values in took.items()}


def docker(filled_mb: int) -> dict[str, float]:
    def run(*words: str) -> str:
        return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout

    took: dict[str, list[float]] = {}
    box = run("run", "-d", DOCKER_IMAGE, "sleep", "100000").strip()
    try:
        run("exec", box, "sh", "-c", f"head -c {filled_mb}000000 /dev/urandom > /filled; sync")
        for _ in range(3):
            run("exec", box, "sh", "-c", f"cd /; {CHANGE.replace('10M', '10000000')}")
            image = timed(took, "docker commit", partial(run, "commit", box)).strip()
            start = partial(run, "run", "-d", image, "sleep", "100000")
            copy = timed(took, "docker run", start).strip()
            run("rm", "-f", copy)
            run("rmi", image)
    finally:
        run("rm", "-f", box)
    return {name: statistics.median(values) for name, values in took.items()}


def main() -> None:
    # A create from a snapshot cannot use the warm pool, so the other must not either.
    os.environ["SANDKASTEN_POOL_ONESHOT_SPARES"] = "0"
    below = sys.argv[1] if len(sys.argv) > 1 else "/var/tmp"
    answers = subprocess.run(["docker", "image", "inspect", DOCKER_IMAGE], capture_output=True)
    for filled_mb in (0, 400):
        data_dir = tempfile.mkdtemp(prefix="snapshots-", dir=below)
        try:
            medians = ours(data_dir, filled_mb)
        finally:
            shutil.rmtree(data_dir, ignore_errors=True)
        if answers.returncode == 0:
            medians |= docker(filled_mb)
        for name, value in medians.items():
            print(f"  {name:16} {value:8.1f} ms   {value / medians['ordinary create']:6.2f} ×")
        if "docker commit" in medians:
            both = medians["snapshot"] + medians["create from it"]
            theirs = medians["docker commit"] + medians["docker run"]
            print(f"  commit and run take {theirs / both:.1f} × as long as snapshot and create")


if __name__ == "__main__":
    main()
