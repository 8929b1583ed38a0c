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
from typing import TYPE_CHECKING

from sandkasten import Sandbox, Snapshots

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 15
CHANGE = "head -c 10M /dev/urandom > changed && sync"
# The one that the tests use; it is not pulled.
DOCKER_IMAGE = os.environ.get("SNAPSHOT_DOCKER_IMAGE", "busybox")


def ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def ours(data_dir: str, filled_mb: int) -> dict[str, float]:
    took: dict[str, list[float]] = {}
    where = {"data_dir": data_dir, "url": "embedded", "backend": "local"}
    snapshots = Snapshots(**where)
    with Sandbox(image="host", **where) as box:
        box.exec(f"head -c {filled_mb}M /dev/urandom > filled; sync", check=True)
        for _ in range(ROUNDS):
            box.exec(CHANGE, check=True)
            kept = []
            took.setdefault("snapshot", []).append(
                ms(lambda kept=kept: kept.append(box.snapshot()))
            )
            (snapshot,) = kept
            took.setdefault("stopped", []).append(snapshot.frozen_ms)
            for name, options in (
                ("create from it", {"snapshot": snapshot.id}),
                ("ordinary create", {"image": "host"}),
            ):
                boxes: list[Sandbox] = []
                took.setdefault(name, []).append(
                    ms(
                        lambda boxes=boxes, options=options: boxes.append(
                            Sandbox(**options, **where)
                        )
                    )
                )
                boxes[0].close()
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
            image: list[str] = []
            took.setdefault("docker commit", []).append(
                ms(lambda image=image: image.append(run("commit", box).strip()))
            )
            copy: list[str] = []
            words = ("run", "-d", image[0], "sleep", "100000")
            took.setdefault("docker run", []).append(
                ms(lambda copy=copy, words=words: copy.append(run(*words).strip()))
            )
            run("rm", "-f", copy[0])
            run("rmi", image[0])
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
            figures = ours(data_dir, filled_mb)
        finally:
            shutil.rmtree(data_dir, ignore_errors=True)
        if answers.returncode == 0:
            figures |= docker(filled_mb)
        for name, value in figures.items():
            print(f"  {name:16} {value:8.1f} ms   {value / figures['ordinary create']:6.2f} ×")
        if "docker commit" in figures:
            both = figures["snapshot"] + figures["create from it"]
            theirs = figures["docker commit"] + figures["docker run"]
            print(f"  commit and run take {theirs / both:.1f} × as long as snapshot and create")


if __name__ == "__main__":
    main()
