"""The daemon in a container, with the engine's socket and nothing else of the machine.

It is this checkout, read-only, on the machine's own /usr. Its sessions are containers beside it:
their files in the volume that both see (`shared`), or in volumes of their own, reached through the
engine (`volume`). It is asked over HTTP, on a socket in a directory that is mounted for that.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.peers.docker import IMAGE
from benchmarks.samples import Samples
from sandkasten import Sandbox
from scripts.distributions import sources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.peers.docker import Docker
    from benchmarks.plan import Plan

MODES: Final = {"shared": "sandkasten", "volume": "sandkasten, volumes"}
"""With the name that each has in the table."""
WRITE: Final = "write 4 KB, daemon in a container"
READ: Final = "read 4 KB, daemon in a container"
LIST: Final = "list a directory, daemon in a container"
DELETE: Final = "delete a file, daemon in a container"
EXEC: Final = "exec true, daemon in a container"
CREATE: Final = "create, daemon in a container"
FILES: Final = (WRITE, READ, LIST, DELETE)
_REPOSITORY: Final = Path(__file__).resolve().parents[1]
_DATA: Final = b"x" * 4096
_READY_S: Final = 60.0
_BESIDE: Final = 20
"""Other files in the directory that is listed."""


def measure(samples: Samples, docker: Docker, plan: Plan) -> None:
    for mode, peer in MODES.items():
        with _daemon(docker, mode) as url:
            # The first looks at the engine, and has a throw-away sandbox examined.
            Sandbox(url=url).close()
            with samples.timed(CREATE, peer):
                box = Sandbox(url=url)
            with box:
                for number in range(_BESIDE):
                    box.write(f"/workspace/beside-{number}", _DATA)
                _round(Samples(), peer, box, 0)  # pays for connections and caches
                deadline = time.monotonic() + plan.section_s / len(MODES)
                for number in range(plan.contained_rounds):
                    _round(samples, peer, box, number)
                    if time.monotonic() > deadline:
                        break


def _round(samples: Samples, peer: str, box: Sandbox, number: int) -> None:
    path = f"/workspace/file-{number}"
    with samples.timed(WRITE, peer):
        box.write(path, _DATA)
    with samples.timed(READ, peer):
        back = box.read(path)
    assert back == _DATA
    with samples.timed(LIST, peer):
        entries = list(box.ls("/workspace"))
    assert len(entries) == _BESIDE + 1
    with samples.timed(DELETE, peer):
        box.remove(path)
    with samples.timed(EXEC, peer):
        code = box.exec(["/bin/true"]).exit_code
    assert code == 0


@contextmanager
def _daemon(docker: Docker, mode: str) -> Iterator[str]:
    # By what both sides call it; below the machine's own scratch folder names are too long.
    folder = docker.shared / mode[0]
    folder.mkdir()
    mounts: dict[str, dict[str, str]] = {path: {"bind": path, "mode": "ro"} for path in _readable()}
    mounts[str(docker.socket)] = {"bind": "/var/run/docker.sock", "mode": "rw"}
    mounts[str(folder)] = {"bind": "/reached", "mode": "rw"}
    if mode == "shared":
        mounts["station-sandboxes"] = {"bind": "/shared-sandboxes", "mode": "rw"}
    container = docker.start(
        [sys.executable, "-m", "sandkasten_server.cli", "serve", "--log-level", "warning"],
        volumes=mounts,
        working_dir=str(_REPOSITORY),
        environment={
            "PYTHONPATH": os.pathsep.join(str(_REPOSITORY / path) for path in sources()),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LANG": "C.UTF-8",
            "SANDKASTEN_BACKEND": "docker",
            "SANDKASTEN_DATA_DIR": "/var/tmp/sandkasten",
            "SANDKASTEN_DEFAULT_IMAGE": IMAGE,
            "SANDKASTEN_SOCKET": "/reached/daemon.sock",
        },
    )
    try:
        _wait(folder / "daemon.sock", container)
        yield f"unix://{folder / 'daemon.sock'}"
    finally:
        container.stop(timeout=20)
        docker.destroy(container)


def _wait(socket: Path, container: Any) -> None:
    deadline = time.monotonic() + _READY_S
    while not socket.exists():
        container.reload()
        if container.status not in ("created", "running") or time.monotonic() > deadline:
            logs = container.logs().decode(errors="replace")[-2000:]
            raise RuntimeError(f"the daemon in a container did not start: {logs}")
        time.sleep(0.05)


def _readable() -> list[str]:
    """Where this checkout, its environment and its interpreter lie."""
    wanted = {_REPOSITORY, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    wanted |= {Path("/usr"), Path(sys.executable).parent.parent}
    roots: list[Path] = []
    for path in sorted(wanted, key=lambda place: len(place.parts)):
        if not any(path.is_relative_to(other) for other in roots):
            roots.append(path)
    return [str(path) for path in roots]
