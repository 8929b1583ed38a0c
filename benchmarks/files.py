"""Files in and out, held against a plain copy of the same bytes through a pipe."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from benchmarks.peers import bare, ours

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.peers import Peers
    from benchmarks.plan import Plan
    from benchmarks.samples import Samples

SIZES = {"1 KB": 1_000, "1 MB": 1_000_000, "50 MB": 50_000_000}


def measure(samples: Samples, peers: Peers, plan: Plan, scratch: Path) -> None:
    box = ours.create()
    container = peers.docker.create() if peers.docker is not None else None
    try:
        for label, size in SIZES.items():
            data = os.urandom(size)
            deadline = time.monotonic() + plan.section_s / len(SIZES)
            for number in range(plan.file_rounds):
                name = f"f{size}-{number}"
                target = scratch / name
                with samples.timed(f"write {label}", "sandkasten"):
                    ours.write(box, name, data)
                with samples.timed(f"write {label}", "pipe"):
                    bare.pipe_write(target, data)
                if container is not None and peers.docker is not None:
                    with samples.timed(f"write {label}", "docker"):
                        peers.docker.write(container, name, data)
                # Or the first to read would share the disk and a core with all that was written.
                os.sync()
                with samples.timed(f"read {label}", "sandkasten"):
                    back = ours.read(box, name)
                assert back == data
                with samples.timed(f"read {label}", "pipe"):
                    back = bare.pipe_read(target)
                assert back == data
                if container is not None and peers.docker is not None:
                    with samples.timed(f"read {label}", "docker"):
                        back = peers.docker.read(container, name)
                    assert back == data
                # Fresh files all, so that nobody is timed for giving back an older one's blocks.
                target.unlink()
                box.remove(f"/workspace/{name}")
                if time.monotonic() > deadline:
                    break
    finally:
        ours.destroy(box)
        if container is not None and peers.docker is not None:
            peers.docker.destroy(container)
