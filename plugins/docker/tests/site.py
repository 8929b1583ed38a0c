"""An installation on an engine of the run, and what it has left there.

Leftovers are read from the engine, the kernel and the data directory, never from our own code.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandkasten.errors import SandkastenError
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from tests.hostwatch import loopwatch
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sandkasten.model.commands.exec_values import ExecResult
    from sandkasten_runtime.engine.engine import Engine
    from tests.engines.engine import Engine as Dockerd
    from tests.engines.reached import Reached

LONG = os.environ.get("TEST_SANDKASTEN_LONG") == "1"
IMAGE = "busybox:test"
FAR = CreateRequest(SandboxOptions(backend="docker"))
_RUNNER = "sandkasten-runner-"


def environment(docker_engine: Reached, mode: str = "volume", **more: str) -> dict[str, str]:
    """Return the operator's settings as variables."""
    variables = {
        "DOCKER_HOST": docker_engine.host,
        "SANDKASTEN_DOCKER_WORKSPACE_MODE": mode,
        "SANDKASTEN_DEFAULT_IMAGE": IMAGE,
        # Containers are counted, and one of the pool takes a quarter of a second.
        "SANDKASTEN_POOL_ONESHOT_SPARES": "0",
    }
    return {**variables, **{f"SANDKASTEN_{name.upper()}": value for name, value in more.items()}}


@asynccontextmanager
async def opened(
    data_dir: Path, docker_engine: Reached, mode: str = "volume", **more: str
) -> AsyncIterator[Engine]:
    """Open an engine; everything that it still has is destroyed at the end."""
    environ = {"HOME": str(data_dir), **environment(docker_engine, mode, **more)}
    instance = await open_engine(load({"data_dir": str(data_dir)}, environ, data_dir.parent))
    try:
        yield instance
    finally:
        try:
            for sandbox in await instance.list(all=True):
                try:
                    await instance.destroy(sandbox.id)
                except SandkastenError:
                    continue
        finally:
            await instance.aclose()


async def sh(engine: Engine, sandbox_id: str, command: str, **more: Any) -> ExecResult:
    return await engine.exec(sandbox_id, ExecRequest(command, **more))


@loopwatch.of_the_test
def left(docker_engine: Reached, *data_dirs: Path) -> list[str]:
    """Return everything left of any sandbox; the runner's volume is shared and stays."""
    leftovers = [f"container {name}" for name in docker_engine.containers()]
    leftovers += [
        f"volume {name}" for name in docker_engine.volumes() if not name.startswith(_RUNNER)
    ]
    for data_dir in data_dirs:
        for place in ("docker/cells", "docker/records", "docker/networks", "ledger/rows"):
            at = data_dir / place
            leftovers += [f"{place}/{name}" for name in (os.listdir(at) if at.is_dir() else ())]
        leftovers += [
            f"mount {line.split()[4]}"
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if line.split()[4].startswith(f"{data_dir}/")
        ]
        leftovers += [f"loop {device}" for device in loops(data_dir)]
    return leftovers


def loops(below: Path) -> list[str]:
    """Return the files below it that are attached to loop devices."""
    backings = []
    for at in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = at.read_text().strip()
        except OSError:
            continue
        if backing.startswith(f"{below}/"):
            backings.append(backing)
    return backings


@loopwatch.of_the_test
def crash(docker_engine: Dockerd) -> None:
    """Kill dockerd with SIGKILL and wait until its containerd is reaped.

    Where the first process reaps no orphans, containerd would look alive to the next dockerd.
    """
    docker_engine.kill9()
    (docker_engine.folder / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)


@loopwatch.of_the_test
def freeze(docker_engine: Dockerd) -> None:
    """Make the engine hang: the kernel accepts connections, and they are never answered."""
    assert docker_engine._daemon is not None
    docker_engine._daemon.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{docker_engine._daemon.pid}/task")
    while not _all_stopped(tasks):
        time.sleep(0.005)


def _all_stopped(tasks: Path) -> bool:
    try:
        return all(" T " in (at / "stat").read_text() for at in tasks.iterdir())
    except OSError:  # A thread has ended meanwhile.
        return False


@loopwatch.of_the_test
def revive(docker_engine: Dockerd) -> None:
    """Make the engine run again after whatever a test did to it."""
    if docker_engine._daemon is None or docker_engine._daemon.poll() is not None:
        docker_engine.start()
    else:
        docker_engine._daemon.send_signal(signal.SIGCONT)


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await check():
        assert time.monotonic() < deadline, "it never came to that"
        await asyncio.sleep(0.05)


async def nothing_left(docker_engine: Reached, *data_dirs: Path) -> list[str]:
    """Return what is still there after a while; empty as soon as nothing is."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        leftovers = await asyncio.to_thread(left, docker_engine, *data_dirs)
        if not leftovers or time.monotonic() > deadline:
            return leftovers
        await asyncio.sleep(0.1)
