"""The guarantees of both runtimes, seen from the host."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandkasten.errors import BackendUnavailable, SandboxLost
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec, HostMount, Volume
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten_contract.box import Box, eventually
from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell
from sandkasten_runtime.backends.local.backend import LocalBackend
from sandkasten_runtime.backends.oci import probe, runtimes, selftest
from sandkasten_runtime.backends.oci.backend import OciBackend
from sandkasten_runtime.linux import sandbox_removal
from sandkasten_runtime.linux.confinement import id_ranges, posture
from sandkasten_runtime.linux.state_layout import Layout, read_pid, read_state
from sandkasten_runtime.linux.storage import workspace_image
from tests.oci.conftest import RUNTIMES
from tests.patience import PATIENCE_S

HOST = CellSpec(image=Image("host"))


def cell_of(box: Box) -> LaunchedCell:
    assert isinstance(box.cell, LaunchedCell)
    return box.cell


def directory_of(box: Box) -> Path:
    cell = cell_of(box)
    return cell.layout.cell(cell.id)


def members(box: Box) -> list[int]:
    """Host pids of everything in the sandbox's group."""
    state = read_state(directory_of(box))
    assert state is not None
    directory = next(d for d in state.cgroups if "memory" in d or d.endswith(cell_of(box).id))
    return pids_in(directory)


def pids_in(group: str) -> list[int]:
    return [int(pid) for pid in Path(group, "cgroup.procs").read_text().split()]


def id_range(box: Box) -> range:
    state = read_state(directory_of(box))
    assert state is not None
    assert state.slot is not None
    base = id_ranges.base_of(state.slot)
    return range(base, base + id_ranges.COUNT)


@pytest.mark.promise("P07")
async def test_no_process_of_a_sandbox_has_a_host_id_outside_its_range(box: Box):
    await box.begin(["sleep", "1000"])
    await box.run("true")
    ids = id_range(box)
    assert 0 not in ids
    pids = members(box)
    assert len(pids) >= 2
    for pid in pids:
        status = posture.read(pid).status
        for field in ("Uid", "Gid"):
            assert all(int(value) in ids for value in status[field].split()), (pid, status["Name"])


@pytest.mark.promise("P07")
@pytest.mark.parametrize("name", ["oci"], indirect=True)
async def test_a_command_under_runc_is_as_isolated_as_under_the_local_backend(box: Box):
    await box.begin(["sleep", "1001"])
    first = read_pid(directory_of(box))
    assert first is not None
    host = posture.read(os.getpid())

    def look() -> list[str]:
        for pid in posture.processes_in(first[0]):
            with suppress(OSError):  # It has ended meanwhile.
                if Path(f"/proc/{pid}/cmdline").read_text(errors="replace").startswith("sleep\0"):
                    return posture.deviations(posture.read(pid), host, ids=id_range(box))
        return ["not started yet"]

    async def found() -> list[str]:
        return look()

    wanted: list[str] = []
    await eventually(found, wanted)


@pytest.mark.promise("P07")
@pytest.mark.parametrize("name", ["gvisor"], indirect=True)
async def test_gvisors_processes_are_isolated_as_documented(box: Box):
    host = posture.read(os.getpid())
    seen = {pid: posture.read(pid) for pid in members(box)}
    names = sorted(posture.read(pid).status["Name"] for pid in seen)
    assert len(names) >= 2, names
    base = str(id_range(box).start)
    for one in seen.values():
        assert posture.kernel_deviations(one, host, ids=id_range(box)) == []
        # The first id of the range, which is root inside and nobody outside.
        assert set(one.status["Uid"].split()) == {base}
        # The file systems that it sees are those of the sandbox.
        assert all(kind not in one.mountinfo for kind in (" sysfs ", " cgroup ", " cgroup2 "))


@pytest.mark.promise("P07")
@pytest.mark.parametrize("name", ["gvisor"], indirect=True)
async def test_user_code_cannot_reach_the_runners_socket(box: Box):
    where = "/run/sandkasten/listen"
    for attempt in (
        ["ls", where],
        ["rm", "-f", f"{where}/socket"],
        ["mv", where, "/tmp/elsewhere"],
        ["touch", f"{where}/mine"],
        ["python3", "-c", f"import socket; socket.socket(1).connect('{where}/socket')"],
    ):
        ran = await box.run(attempt)
        assert ran.exit_code != 0, attempt
        assert b"ermission denied" in ran.stderr or b"Read-only" in ran.stderr, ran.stderr
    assert (await box.run(["echo", "alive"])).stdout == b"alive\n"


@pytest.mark.promise("P07")
@pytest.mark.parametrize("name", ["gvisor"], indirect=True)
async def test_a_link_in_place_of_the_socket_is_not_followed(backend: OciBackend, disk_path: Path):
    cell = await backend.create(new_sandbox_id(), HOST)
    socket = cell.layout.cell(cell.id) / "listen" / "socket"
    socket.rename(disk_path / "moved")
    socket.symlink_to(disk_path / "moved")
    with pytest.raises(SandboxLost):
        await cell.dial()
    await cell.destroy()


async def test_a_pause_while_the_runner_is_idle_does_not_lose_it(backend: OciBackend):
    cell = await backend.create(new_sandbox_id(), HOST)
    box = await Box.open(cell)
    for _ in range(5):
        await box.ask("quiesce", ms=0)
        await cell.pause()
        await cell.resume()
        await box.aclose()
        box = await Box.open(cell)
        assert (await box.run(["echo", "here"])).stdout == b"here\n"
    await box.aclose()
    await cell.destroy()


@pytest.mark.promise("P07")
async def test_destroy_removes_everything_at_once(
    backend: OciBackend, monkeypatch: pytest.MonkeyPatch
):
    cell = await backend.create(new_sandbox_id(), HOST)
    directory = cell.layout.cell(cell.id)
    state, first = read_state(directory), read_pid(directory)
    assert state is not None
    assert first is not None
    pids = pids_in(str(state.v2_directory))
    started: list[str] = []
    run = subprocess.Popen.__init__

    def noted(self: Any, *args: Any, **options: Any) -> None:
        started.append(str(args or options))
        run(self, *args, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    await cell.destroy()
    # `runsc delete` alone would take a second.
    assert started == []
    assert left_of(cell.id, directory, state.cgroups, pids) == []


def left_of(
    sandbox_id: str, directory: Path, cgroups: tuple[str, ...], pids: list[int]
) -> list[str]:
    found = [path for path in (str(directory), *cgroups) if os.path.exists(path)]
    found += [f"process {pid}" for pid in pids if not _dead(pid)]
    if id_ranges.slot_of(id_ranges.HOST_DIRECTORY, sandbox_id) is not None:
        found.append("a lease of an id range")
    if sandbox_id in Path("/proc/self/mountinfo").read_text():
        found.append("a mount")
    return found


def _dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


MAKER = """
import asyncio, os, signal, sys
from pathlib import Path
from sandkasten_runtime.backends.local.backend import LocalBackend
from sandkasten_runtime.backends.oci.backend import OciBackend
from sandkasten.model.ids import SandboxId
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_runtime.wire.channel import Channel

async def main():
    backend = OciBackend(Path(sys.argv[1]), sys.argv[2])
    cell = await backend.create(SandboxId(sys.argv[3]), CellSpec(image=Image("host")))
    channel = await Channel.open(await cell.dial())
    fields = {"exec_id": "a", "shell": "default", "command": "x=kept"}
    await channel.call("exec.start", {**fields, "follow": False})
    await channel.call("exec.wait", {"exec_id": "a", "timeout_ms": 40000})
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.promise("P07", "P28")
async def test_a_sandbox_survives_kill_9_of_its_creator(
    backend: OciBackend, name: str, scratch: Path
):
    sandbox_id = new_sandbox_id()
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", MAKER, str(scratch), RUNTIMES[name], sandbox_id],
        timeout=100,
        check=False,
    )
    assert done.returncode == -9
    assert sandbox_id in await backend.owned()
    box = await Box.open(await backend.attach(sandbox_id))
    assert (await box.run("echo $x")).stdout == b"kept\n"
    await box.aclose()
    await box.cell.destroy()


async def test_limits_are_enforced_and_counted(backend: OciBackend):
    limits = Limits(memory_bytes=192 * MIB, pids=200, workspace_bytes=16 * MIB, tmp_bytes=2 * MIB)
    cell = await backend.create(new_sandbox_id(), CellSpec(image=Image("host"), limits=limits))
    box = await Box.open(cell)
    usage = await cell.usage()
    assert (usage.memory_limit_bytes, usage.pids_limit) == (192 * MIB, 200)
    assert usage.memory_bytes is not None
    assert usage.memory_bytes > 0
    for path in ("/workspace/big", "/tmp/big"):
        ran = await box.run(["dd", "if=/dev/zero", f"of={path}", "bs=1M", "count=40"])
        assert ran.exit_code != 0
        assert b"No space left" in ran.stderr
    await box.aclose()
    await cell.destroy()


async def test_host_mounts_are_read_only_at_their_targets(backend: OciBackend, tmp_path: Path):
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "data" / "file").write_text("shown")
    (tmp_path / "one").write_text("single")
    mounts = (
        HostMount(str(tmp_path / "data"), "/data/set"),
        HostMount(str(tmp_path / "one"), "/data/one"),
    )
    cell = await backend.create(new_sandbox_id(), CellSpec(image=Image("host"), mounts=mounts))
    box = await Box.open(cell)
    assert (await box.run(["cat", "/data/set/file", "/data/one"])).stdout == b"shownsingle"
    assert (await box.run(["touch", "/data/set/new"])).exit_code != 0
    assert str(tmp_path).encode() not in (await box.run(["cat", "/proc/mounts"])).stdout
    await box.aclose()
    await cell.destroy()


async def test_a_kept_workspace_has_the_ids_of_the_inside_on_disk(
    backend: OciBackend, tmp_path: Path
):
    kept = tmp_path / "kept"
    kept.mkdir()
    spec = CellSpec(image=Image("host"), workspace=Volume(str(kept), "directory"))
    for expected in (b"", b"first\n"):
        cell = await backend.create(new_sandbox_id(), spec)
        box = await Box.open(cell)
        assert (await box.run("cat note 2>/dev/null; true")).stdout == expected
        await box.run("echo first > note")
        await box.aclose()
        await cell.destroy()
    assert (kept / "workspace" / "note").stat().st_uid == 1000


@pytest.mark.promise("P22")
async def test_destroy_does_not_wait_for_another_backends_sandbox_in_the_same_workspace(
    backend: OciBackend, scratch: Path, monkeypatch: pytest.MonkeyPatch
):
    # Whoever does wait for the other does so for longer than we have patience.
    monkeypatch.setattr(sandbox_removal, "_DEATH_DEADLINE_S", 2 * PATIENCE_S)
    path = scratch / f"kept-{backend.name}"
    workspace_image.copy_template(workspace_image.template(scratch, 64 * MIB), path)
    spec = CellSpec(image=Image("host"), workspace=Volume(str(path), "image"))
    local = LocalBackend(scratch)
    mine = await backend.create(new_sandbox_id(), spec)
    other = await local.create(new_sandbox_id(), spec)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await mine.destroy()
        assert workspace_image.attached(str(path))
        again = await backend.create(new_sandbox_id(), spec)
        async with asyncio.timeout(PATIENCE_S):
            await other.destroy()
        assert workspace_image.attached(str(path))
        await again.destroy()
        # The last one does wait: whoever comes next finds it unmounted.
        assert not workspace_image.attached(str(path))
    finally:
        for left in await local.owned():
            await local.discard(left)
        path.unlink()


async def test_a_failing_runtime_gives_the_reason_and_leaves_nothing(
    backend: OciBackend, monkeypatch: pytest.MonkeyPatch
):
    await backend.probe()
    wrong = lambda *a, **k: ["/usr/bin/env", "sh", "-c", "echo a reason >&2; exit 3"]  # noqa: E731
    monkeypatch.setattr("sandkasten_runtime.backends.oci.runtimes.command", wrong)
    monkeypatch.setattr(
        "sandkasten_runtime.backends.oci.runtimes.find", lambda name: "/usr/bin/env"
    )
    with pytest.raises(BackendUnavailable, match="status 3: a reason") as caught:
        await backend.create(new_sandbox_id(), HOST)
    assert caught.value.hint
    assert list(await backend.owned()) == []


@pytest.mark.promise("P05")
@pytest.mark.parametrize("name", ["gvisor"], indirect=True)
async def test_a_gvisor_build_in_which_ordinary_programs_fail_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(selftest, "_ORDINARY", (("false",),))
    backend = OciBackend(tmp_path, "runsc")
    readiness = await backend.probe()
    assert not readiness.ready
    assert "false fails inside with status 1" in readiness.reason
    assert "gVisor" in readiness.remedy
    with pytest.raises(BackendUnavailable):
        await backend.create(new_sandbox_id(), HOST)
    assert list((tmp_path / "gvisor" / "cells").iterdir()) == []


@pytest.mark.promise("P05")
async def test_an_old_runc_is_a_warning_and_refused_with_strict(tmp_path: Path):
    lines = (await OciBackend(tmp_path, "runc").probe()).requirements
    release = next(line for line in lines if line.name == "runc release")
    strict = await OciBackend(tmp_path, "runc", strict=True).probe()
    assert strict.ready == release.ok
    if not release.ok:
        assert "CVE-2025-52881" in strict.reason


@pytest.mark.parametrize("old", [True, False])
async def test_a_sandbox_of_an_old_runc_carries_a_warning(
    old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runtimes, "_RUNC_SAFE", (99,) if old else (0,))
    cell = await OciBackend(tmp_path, "runc").create(new_sandbox_id(), HOST)
    try:
        assert len(cell.warnings) == int(old)
        assert all("CVE-2025-52881" in one for one in cell.warnings)
    finally:
        await cell.destroy()


async def test_a_missing_runtime_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sandkasten_runtime.backends.oci.runtimes.find", lambda name: None)
    for runtime in ("runc", "runsc"):
        readiness = await OciBackend(tmp_path, runtime).probe()
        assert (readiness.ready, readiness.reason) == (False, f"{runtime}: not installed")
        assert runtime in readiness.remedy


def test_an_ordinary_user_gets_an_error_that_root_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    backend = OciBackend(tmp_path, "runsc")
    monkeypatch.setattr("sandkasten_runtime.backends.oci.probe.os.geteuid", lambda: 4711)
    found = probe.look(
        Layout(tmp_path), backend._sandboxes.programs, backend._hierarchies, "runsc", strict=False
    )
    assert not found.ready
    assert found.reason == "root: runsc requires root in this version"
    assert "local" in found.remedy
