"""Sandboxes that are containers, held against the docker SDK on the same dockerd.

Both ways into them: `bind`, where the runner's socket lies in a directory that we see too, and
`volume`, where a stream of the engine leads to it. Nobody has a network here.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from benchmarks.peers import ours
from benchmarks.peers.docker import IMAGE
from benchmarks.samples import Samples
from sandkasten import Images, Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.peers.docker import Docker
    from benchmarks.plan import Plan

MODES: Final = ("bind", "volume")
FIRST_USE: Final = "first use of a store image on docker (given to the engine)"
SIZES: Final = {"1 MB": 1_000_000, "50 MB": 50_000_000}


def create(mode: str) -> str:
    return f"create on docker ({mode})"


def destroy(mode: str) -> str:
    return f"destroy on docker ({mode})"


def shell(mode: str) -> str:
    return f"exec true on docker (shell, {mode})"


def argv(mode: str) -> str:
    return f"exec true on docker (argv, {mode})"


def write(label: str, mode: str) -> str:
    return f"write {label} on docker ({mode})"


def read(label: str, mode: str) -> str:
    return f"read {label} on docker ({mode})"


def measure(samples: Samples, docker: Docker, plan: Plan, rootfs: Path) -> None:
    for mode in MODES:
        # Read once for each data directory, when it is first used.
        os.environ["SANDKASTEN_DOCKER_HOST"] = f"unix://{docker.socket}"
        os.environ["SANDKASTEN_DOCKER_WORKSPACE_MODE"] = mode
        # The first looks at the engine, and has a throw-away sandbox examined.
        _ours(Samples(), docker, plan, mode)
    _sessions(samples, docker, plan)
    _files(samples, docker, plan)
    _first_use(samples, docker, rootfs)


def _sessions(samples: Samples, docker: Docker, plan: Plan) -> None:
    turns: list[Callable[[], None]] = [
        *(lambda mode=mode: _ours(samples, docker, plan, mode) for mode in MODES),
        lambda: _theirs(samples, docker, plan),
    ]
    deadline = time.monotonic() + plan.section_s
    for number in range(plan.engine_rounds):
        shift = number % len(turns)
        for turn in turns[shift:] + turns[:shift]:
            turn()
        if time.monotonic() > deadline:
            return


def _box(docker: Docker, mode: str, image: str = IMAGE) -> Sandbox:
    return Sandbox(image, backend="docker", data_dir=docker.shared / mode)


def _ours(samples: Samples, docker: Docker, plan: Plan, mode: str) -> None:
    with samples.timed(create(mode), "sandkasten"):
        box = _box(docker, mode)
    try:
        ours.exec_shell(box)  # starts the shell
        for _ in range(plan.execs):
            with samples.timed(shell(mode), "sandkasten"):
                ours.exec_shell(box)
            with samples.timed(argv(mode), "sandkasten"):
                ours.exec_argv(box)
    finally:
        with samples.timed(destroy(mode), "sandkasten"):
            ours.destroy(box)


def _theirs(samples: Samples, docker: Docker, plan: Plan) -> None:
    container = _taken(samples, [create(mode) for mode in MODES], lambda: docker.create("none"))
    for _ in range(plan.execs):
        # It has one way to run a command; all of ours are held against it.
        named = [how(mode) for how in (shell, argv) for mode in MODES]
        _taken(samples, named, lambda: docker.exec_true(container))
    _taken(samples, [destroy(mode) for mode in MODES], lambda: docker.destroy(container))


def _files(samples: Samples, docker: Docker, plan: Plan) -> None:
    with ExitStack() as stack:
        boxes = {mode: stack.enter_context(_box(docker, mode)) for mode in MODES}
        container = docker.create("none")
        stack.callback(docker.destroy, container)
        for label, size in SIZES.items():
            data = os.urandom(size)
            deadline = time.monotonic() + plan.section_s / len(SIZES)
            for number in range(plan.engine_file_rounds):
                _file(samples, docker, boxes, container, label, f"f{size}-{number}", data)
                if time.monotonic() > deadline:
                    break


def _file(
    samples: Samples,
    docker: Docker,
    boxes: dict[str, Sandbox],
    container: Any,
    label: str,
    name: str,
    data: bytes,
) -> None:
    for mode, box in boxes.items():
        with samples.timed(write(label, mode), "sandkasten"):
            ours.write(box, name, data)
    written = [write(label, mode) for mode in MODES]
    _taken(samples, written, lambda: docker.write(container, name, data))
    # Or the first to read would share the disk and a core with all that was written.
    os.sync()
    for mode, box in boxes.items():
        with samples.timed(read(label, mode), "sandkasten"):
            back = ours.read(box, name)
        assert back == data
        box.remove(f"/workspace/{name}")
    been_read = [read(label, mode) for mode in MODES]
    assert _taken(samples, been_read, lambda: docker.read(container, name)) == data


def _first_use(samples: Samples, docker: Docker, rootfs: Path) -> None:
    """Told and not judged: the peer has its image already."""
    archive = docker.shared / "image.tar"
    subprocess.run(["tar", "-C", str(rootfs), "-cf", str(archive), "."], check=True)
    Images(data_dir=docker.shared / MODES[0]).import_archive(str(archive), name="stored")
    with samples.timed(FIRST_USE, "sandkasten"):
        box = _box(docker, MODES[0], "stored")
    box.close()


def _taken(samples: Samples, operations: list[str], verb: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = verb()
    took = (time.perf_counter() - began) * 1000
    for operation in operations:
        samples.add(operation, "docker", took)
    return result
