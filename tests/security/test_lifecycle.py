"""Killed creators, host restarts and reused pids."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sandkasten.disk import process_identity
from sandkasten.errors import SandboxLost
from sandkasten_runtime.linux.confinement import id_ranges
from sandkasten_runtime.wire.channel import Channel
from tests.patience import PATIENCE_S
from tests.platform_choice import open_backend
from tests.security.harness import CLUSTER_SAYS, ENGINE_SAYS, ROOT, Box, poll

pytestmark = pytest.mark.promise("P29")

MAKER = """
import asyncio, sys, time
from pathlib import Path
from sandkasten.model.ids import new_sandbox_id
from tests.platform_choice import GROUNDS, open_backend, spec_on

async def main():
    ground = GROUNDS[sys.argv[3]]
    backend = open_backend(ground, Path(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        sandbox_id = new_sandbox_id()
        print("making", sandbox_id, flush=True)
        await backend.create(sandbox_id, spec_on(ground))
        print("made", sandbox_id, flush=True)
    time.sleep(600)

asyncio.run(main())
"""


def _maker(data_dir: Path, count: int, platform: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, str(data_dir), str(count), platform],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


def test_a_sandbox_outlives_the_process_that_made_it(loop, backend, data_dir, neighbour, platform):
    with _maker(data_dir, 1, platform) as maker:
        assert maker.stdout is not None
        made = [maker.stdout.readline().split() for _ in range(2)][1]
        assert made[0] == "made"
        maker.send_signal(signal.SIGKILL)
        maker.wait(PATIENCE_S)

    async def use() -> bytes:
        cell = await backend.attach(made[1])
        channel = await Channel.open(await cell.dial())
        fields = {"exec_id": "x", "shell": "default", "command": "echo alive"}
        out = b""
        async with channel.stream("exec.start", fields) as call:
            async for item in call:
                out += getattr(item, "data", b"")
        await channel.aclose()
        await cell.destroy()
        return out

    assert loop.run(use()) == b"alive\n"
    assert made[1] not in loop.run(backend.owned())


@pytest.mark.timeout(600)
def test_a_creator_killed_at_any_point_leaves_nothing_that_cannot_be_removed(
    loop, tmp_path, platform, ground, full_size
):
    """kill -9 at many points of create; what is left is found and removed."""
    data_dir = tmp_path / "d"
    backend: Any = open_backend(ground, data_dir)
    # Whole at first, so that what is killed later is a create and not the self-test before it; then
    # once more, for how long that takes on this machine just now.
    took = 0.0
    for _ in range(2):
        with _maker(data_dir, 1, platform) as whole:
            assert whole.stdout is not None
            assert whole.stdout.readline().split()[0] == "making"
            began = time.monotonic()
            assert whole.stdout.readline().split()[0] == "made"
            took = time.monotonic() - began
            whole.kill()
    tries = 12 if full_size else 6
    ids: list[Any] = []
    # On a machine that grew busier none may have come far enough: then later moments.
    for longer in (1, 2, 4):
        for attempt in range(tries):
            with _maker(data_dir, 50, platform) as maker:
                assert maker.stdout is not None
                maker.stdout.readline()
                time.sleep(took * longer * attempt / tries)  # the moment is the point
                maker.send_signal(signal.SIGKILL)
                maker.wait(PATIENCE_S)
        ids = list(loop.run(backend.owned()))
        if ids:
            break
    assert ids
    namespaces = _states(data_dir)

    async def clean() -> None:
        for sandbox_id in ids:
            await backend.discard(sandbox_id)

    loop.run(clean())
    assert loop.run(backend.owned()) == []
    for cgroup in namespaces:
        poll("a cgroup", lambda c=cgroup: os.path.exists(c) and c)  # type: ignore[misc]
    if ROOT:
        held = [id_ranges.slot_of(id_ranges.HOST_DIRECTORY, i) for i in ids]
        assert held == [None] * len(ids)
    poll("processes", lambda: _named_after(data_dir))
    poll("loop devices", lambda: _loops(data_dir))
    if hasattr(backend, "aclose"):
        loop.run(backend.aclose())


def _states(data_dir: Path) -> list[str]:
    found: list[str] = []
    for state in data_dir.rglob("cells/*/state"):
        found += json.loads(state.read_text())["cgroups"]
    return found


def _named_after(data_dir: Path) -> list[str]:
    """Return launchers, bubblewraps and first processes with mounts from this data directory."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if str(data_dir) in Path(f"/proc/{name}/mountinfo").read_text():
                    found.append(
                        f"{name} {Path(f'/proc/{name}/comm').read_text(errors='replace').strip()}"
                    )
            except OSError:
                continue
    return found


def _loops(data_dir: Path) -> list[str]:
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if str(data_dir) in file.read_text():
                found.append(file.parts[3])
        except OSError:
            continue
    return found


def _rewrite(box: Box, **changes: object) -> None:
    path = box.directory / "state"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.not_on("docker", reason=ENGINE_SAYS)
@pytest.mark.not_on("kubernetes", reason=CLUSTER_SAYS)
def test_after_a_restart_of_the_machine_a_sandbox_counts_as_lost(box):
    """Simulated by another boot id in its state; the test ends the real process."""
    boot_id = json.loads((box.directory / "state").read_text())["boot_id"]
    assert boot_id == process_identity.boot_id()
    _rewrite(box, boot_id="00000000-0000-0000-0000-000000000000")
    with pytest.raises(SandboxLost):
        box.loop.run(box.backend.attach(box.id))
    assert box.id in box.loop.run(box.backend.owned())
    _rewrite(box, boot_id=boot_id)


@pytest.mark.not_on("docker", reason=ENGINE_SAYS)
@pytest.mark.not_on("kubernetes", reason=CLUSTER_SAYS)
def test_leftovers_of_an_earlier_boot_are_removed_without_signalling_a_pid(box):
    """The pid in the file may be reused: here it is an unrelated process of ours."""
    real = (box.directory / "pid").read_text()
    with subprocess.Popen(["sleep", "600"]) as innocent:
        try:
            started = process_identity.start_time(innocent.pid)
            box.loop.run(box.channel.aclose())
            os.kill(box.host_pid, signal.SIGKILL)
            poll("the sandbox", lambda: box.host_pid in box._living())
            (box.directory / "pid").write_text(f"{innocent.pid} {started}")
            _rewrite(box, boot_id="00000000-0000-0000-0000-000000000000")
            box.loop.run(box.backend.discard(box.id))
            box.destroyed = True
            assert innocent.poll() is None
            assert not box.directory.exists()
        finally:
            innocent.kill()
    assert real


@pytest.mark.not_on("docker", reason=ENGINE_SAYS)
@pytest.mark.not_on("kubernetes", reason=CLUSTER_SAYS)
def test_a_reused_pid_is_not_signalled(box):
    with subprocess.Popen(["sleep", "600"]) as innocent:
        try:
            box.loop.run(box.channel.aclose())
            os.kill(box.host_pid, signal.SIGKILL)
            poll("the sandbox", lambda: box.host_pid in box._living())
            # The same pid, another start time: what a reused pid looks like. (Ticks are 10 ms long:
            # the two may have begun in the same one.)
            other = box.host_start - (process_identity.start_time(innocent.pid) == box.host_start)
            (box.directory / "pid").write_text(f"{innocent.pid} {other}")
            with pytest.raises(SandboxLost):
                box.loop.run(box.backend.attach(box.id))
            box.loop.run(box.backend.discard(box.id))
            box.destroyed = True
            assert innocent.poll() is None
        finally:
            innocent.kill()


@pytest.mark.aspect("damage")
@pytest.mark.not_on("docker", reason=ENGINE_SAYS)
@pytest.mark.not_on("kubernetes", reason=CLUSTER_SAYS)
@pytest.mark.parametrize("damage", ["empty", "garbage", "missing"])
def test_a_damaged_state_file_does_not_let_a_sandbox_outlive_its_record(damage, box):
    state = box.directory / "state"
    match damage:
        case "empty":
            state.write_text("")
        case "garbage":
            state.write_bytes(b"\xff\x00{[")
        case "missing":
            state.unlink()
    pinned = os.pidfd_open(box.host_pid)
    try:
        with pytest.raises(SandboxLost):
            box.loop.run(box.backend.attach(box.id))
        box.loop.run(box.channel.aclose())
        box.loop.run(box.backend.discard(box.id))
        box.destroyed = True
        poll("what is left", box.leftovers)
    finally:
        _tidy(box, pinned)


def _tidy(box: Box, pinned: int) -> None:
    """Remove leftovers, so that a failure here does not fail later tests."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pinned, signal.SIGKILL)
    os.close(pinned)
    poll("processes", box._living)
    for directory in box.state["cgroups"]:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(directory)
    if ROOT:
        id_ranges.release(id_ranges.HOST_DIRECTORY, box.state["slot"], box.id)


def test_destroying_twice_or_destroying_a_dead_sandbox_succeeds(box):
    os.kill(box.host_pid, signal.SIGKILL)
    poll("the sandbox", lambda: box.host_pid in box._living())
    box.destroy()
    box.loop.run(box.cell.destroy())


def _until_it_fails(box: Box) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        box.exec(["true"])


def test_a_dead_sandbox_is_reported_as_lost(box):
    os.kill(box.host_pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        _until_it_fails(box)
    # Its connections are closed a moment before it is dead.
    poll("the sandbox", lambda: box.host_pid in box._living())
    if box.container:
        # And an engine hears of it a moment later.
        poll("the engine's word for it", lambda: _is_found(box))
    with pytest.raises(SandboxLost):
        box.loop.run(box.backend.attach(box.id))
    box.destroy()


def _is_found(box: Box) -> bool:
    try:
        box.loop.run(box.backend.attach(box.id))
    except SandboxLost:
        return False
    return True


@pytest.mark.aspect("damage")
@pytest.mark.parametrize(
    "spoil",
    [
        "chmod 000 /workspace",
        "mkdir -p /workspace/a/b; chmod 000 /workspace/a/b /workspace/a; chmod 000 ~",
        "for i in $(seq 3000); do : >/workspace/$i; done",
        "chattr +i /workspace 2>/dev/null; true",
        "ln -s / /workspace/root; ln -s /workspace /workspace/self",
        "mkfifo /workspace/f; (sleep 1000 <>/workspace/f &)",
        "head -c 104857600 /dev/zero >/workspace/full; true",
        "d=/workspace; for i in $(seq 300); do d=$d/deeper; mkdir $d; done; cd $d; sleep 1000 &",
    ],
)
def test_a_damaged_workspace_does_not_prevent_removal_of_the_sandbox(spoil, box):
    box.exec(["sh", "-c", spoil], timeout_s=60)
    box.destroy()
    poll("the sandbox", box.leftovers)
