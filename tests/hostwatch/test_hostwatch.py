"""The host watch reports each kind of leftover."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sandkasten
from tests.hostwatch import canary as canary_tree
from tests.hostwatch import loopwatch, snapshot
from tests.hostwatch.difference import SETTLE, differences, settled
from tests.patience import PATIENCE_S

pytest_plugins = ["pytester"]
# What is left on purpose is still there however long one waits, and others come and go meanwhile.
BRIEFLY = {SETTLE: "0.5"}


ONE_PROCESS = pytest.mark.long(reason="`make test` uses workers")


@pytest.fixture
def planted_canary(tmp_path: Path) -> Path:
    canary_tree.plant(tmp_path)
    return tmp_path


def _only(part: str, lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(part + ":")]


def _of_process(before: snapshot.Snapshot, planted: Path, pid: int, name: str) -> list[str]:
    """Return what is reported about a process after its exec."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        told = _only("processes", differences(before, snapshot.take(planted)))
        lines = [line for line in told if f" {pid}@" in line]
        if any(name in line for line in lines) or time.monotonic() > deadline:
            return lines
        time.sleep(0.02)


def test_an_idle_host_shows_no_difference_in_what_we_own(planted_canary):
    before = snapshot.take(planted_canary)
    after = snapshot.take(planted_canary)
    lines = differences(before, after)
    assert _only("sysctls", lines) == []
    assert _only("canary", lines) == []


def test_a_process_that_outlives_its_test_is_reported_and_one_that_ends_is_not(planted_canary):
    before = snapshot.take(planted_canary)
    with subprocess.Popen(["/bin/sleep", "600"]) as left:
        lines = _of_process(before, planted_canary, left.pid, "sleep")
        left.kill()
    assert len([line for line in lines if "sleep" in line]) == 1
    after = _only("processes", differences(before, snapshot.take(planted_canary)))
    assert [line for line in after if f" {left.pid}@" in line] == []


def test_a_foreign_process_is_not_ours(planted_canary):
    before = snapshot.take(planted_canary)
    with subprocess.Popen(["/bin/sleep", "600"], env={}) as foreign:
        lines = _only("processes", differences(before, snapshot.take(planted_canary)))
        foreign.kill()
    assert [line for line in lines if f" {foreign.pid}@" in line] == []


def test_a_process_named_like_the_runner_is_ours_in_any_environment(planted_canary, tmp_path):
    named = tmp_path / "sandkasten-runner"
    named.symlink_to("/bin/sleep")
    before = snapshot.take(planted_canary)
    with subprocess.Popen([named, "600"], env={}) as left:
        lines = _of_process(before, planted_canary, left.pid, "sandkasten-runn")
        left.kill()
    assert len(lines) == 1
    assert "sandkasten-runn" in lines[0]


def test_a_changed_canary_is_reported(planted_canary):
    before = snapshot.take(planted_canary)
    (planted_canary / "open.txt").write_text("somebody was here\n")
    (planted_canary / "nested" / "private.txt").chmod(0o644)
    (planted_canary / "new.txt").touch()
    lines = _only("canary", differences(before, snapshot.take(planted_canary)))
    assert [line.split(": ")[1:3] for line in lines] == [
        ["new", f"{planted_canary}/new.txt"],
        ["changed", f"{planted_canary}/nested/private.txt"],
        ["changed", f"{planted_canary}/open.txt"],
    ]


@pytest.mark.parametrize("part", ["firewall", "sysctls", "canary", "etc"])
def test_every_change_of_what_belongs_to_the_host_is_reported(planted_canary, part):
    assert _differences(planted_canary, part) == [
        f"{part}: new: c: 1",
        f"{part}: gone: a: 1",
        f"{part}: changed: b: 1 -> 2",
    ]


@pytest.mark.parametrize(
    "part", ["processes", "mounts", "loops", "cgroups", "netns", "links", "files"]
)
def test_only_what_came_is_left_behind_by_a_run(planted_canary, part):
    assert _differences(planted_canary, part) == [f"{part}: new: c: 1"]


def _differences(planted: Path, part: str) -> list[str]:
    clean = snapshot.take(planted)
    old = dataclasses.replace(clean, **{part: {"a": "1", "b": "1"}})
    new = dataclasses.replace(clean, **{part: {"b": "2", "c": "1"}})
    return _only(part, differences(old, new))


def test_packages_that_another_program_installs_excuse_only_changes_of_etc(planted_canary):
    clean = snapshot.take(planted_canary)
    changed = dataclasses.replace(clean, etc={"a": "1"}, canary={"a": "1"}, packages={"b": "1"})
    assert _only("etc", differences(clean, changed)) == []
    assert _only("packages", differences(clean, changed)) == []
    assert _only("canary", differences(clean, changed)) != []
    unchanged = dataclasses.replace(changed, packages=clean.packages)
    assert _only("etc", differences(clean, unchanged)) != []


def test_the_parts_of_a_snapshot_are_all_tried():
    tried = {"firewall", "sysctls", "canary", "etc", "packages"}
    tried |= {"processes", "mounts", "loops", "cgroups", "netns", "links", "files"}
    assert {field.name for field in dataclasses.fields(snapshot.Snapshot)} == tried


@pytest.mark.root
def test_work_of_another_program_is_not_reported(planted_canary, tmp_path):
    """A file, a mount, a cgroup, a namespace and a process that another program makes."""
    before = snapshot.take(planted_canary)
    name = f"other-{os.getpid()}"
    file, mount = Path(f"/tmp/{name}"), Path(f"/mnt/{name}")
    cgroup = next(Path("/sys/fs/cgroup").glob("**/cgroup.procs")).parent / name
    file.touch()
    mount.mkdir()
    cgroup.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "other", mount], check=True)
    try:
        with subprocess.Popen(["unshare", "--net", "sleep", "600"], env={}) as process:
            lines = differences(before, snapshot.take(planted_canary))
            process.kill()
    finally:
        subprocess.run(["umount", mount], check=True)
        mount.rmdir()
        cgroup.rmdir()
        file.unlink()
    assert [line for line in lines if name in line or f" {process.pid}@" in line] == []


def test_a_new_file_in_a_shared_folder_is_reported(planted_canary):
    before = snapshot.take(planted_canary)
    litter = Path(f"/var/tmp/sandkasten-litter-{os.getpid()}")
    litter.touch()
    try:
        lines = _only("files", differences(before, snapshot.take(planted_canary)))
    finally:
        litter.unlink()
    assert f"files: new: {litter}: left behind" in lines


def test_the_watch_waits_for_processes_that_are_ending(planted_canary):
    clean = snapshot.take(planted_canary)
    dirty = dataclasses.replace(clean, cgroups={**clean.cgroups, "/x/sandkasten": "cgroup"})
    looks = iter([dirty, dirty, clean])
    assert settled(clean, planted_canary, look=lambda _: next(looks)) == []
    assert settled(clean, planted_canary, settle_s=0, look=lambda _: dirty) == [
        "cgroups: new: /x/sandkasten: cgroup"
    ]


def test_sysctls_are_read_by_value_and_counters_are_left_out(planted_canary):
    sysctls = snapshot.take(planted_canary).sysctls
    assert (
        sysctls["kernel/core_pattern"] == Path("/proc/sys/kernel/core_pattern").read_text().strip()
    )
    assert len(sysctls) > 300
    assert [name for name in sysctls if name.startswith(snapshot.VOLATILE_SYSCTLS)] == []


@pytest.mark.parametrize(
    ("leaves", "workers"),
    [
        (True, ("-n", "2")),
        pytest.param(False, (), marks=ONE_PROCESS),
        pytest.param(True, (), marks=ONE_PROCESS),
        pytest.param(False, ("-n", "2"), marks=ONE_PROCESS),
    ],
)
def test_a_run_that_leaves_a_process_fails_and_names_it(pytester, leaves, workers):
    root = Path(__file__).parents[2]
    pytester.makeconftest((root / "conftest.py").read_text())
    # Others may leave a `sleep` at the same time; a name that is nobody else's.
    named = pytester.path / f"left-{os.getpid()}"
    named.symlink_to("/bin/sleep")
    pytester.makepyfile(
        f"""
        import subprocess

        def test_leaves_something():
            if {leaves}:
                subprocess.Popen(
                    ["{named}", "300"], start_new_session=True, stdout=subprocess.DEVNULL
                ).returncode = 0
        """
    )
    env = {**os.environ, "PYTHONPATH": str(root), **BRIEFLY}
    del env[snapshot.MARKER]
    command = [sys.executable, "-m", "pytest", "--hostwatch", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, *workers, str(pytester.path)],
        cwd=pytester.path,
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    ours = [
        line for line in run.stdout.splitlines() if named.name in line and "processes: new" in line
    ]
    for line in ours:
        pid = int(line.split("new: ")[1].partition("@")[0])
        os.kill(pid, 9)
    assert len(ours) == int(leaves), run.stdout
    if leaves:
        assert run.returncode == 1
        assert "the run changed the host" in run.stdout


@pytest.mark.parametrize("workers", [pytest.param((), marks=ONE_PROCESS), ("-n", "2")])
@pytest.mark.long(reason="`make test` has a run that leaves a process")
def test_a_changed_canary_fails_a_run_that_is_not_watched(pytester, workers):
    root = Path(__file__).parents[2]
    pytester.makeconftest((root / "conftest.py").read_text())
    pytester.makepyfile("def test_spoils(canary): (canary / 'open.txt').write_text('spoilt')")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *workers, str(pytester.path)],
        cwd=pytester.path,
        env={**os.environ, "PYTHONPATH": str(root), **BRIEFLY},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert run.returncode == 1
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("canary: "))
    assert "changed" in line
    assert "open.txt" in line


# Time in which the thread waited for a processor does not count, so block for much longer. Nor does
# a callback that waited for pages of a program; it rarely does so three times in a row.
BLOCKED_S = loopwatch.LIMIT_S + 3
ATTEMPTS = 3


@pytest.mark.slow_loop
@pytest.mark.long(reason="`make test` runs with the same check in every test")
async def test_a_blocking_call_in_a_coroutine_is_reported():
    loopwatch.drain()
    for _ in range(ATTEMPTS):
        await asyncio.sleep(0)
        time.sleep(BLOCKED_S)  # noqa: ASYNC251  (the very thing to be noticed)
        await asyncio.sleep(0)
        if noticed := loopwatch.drain():
            break
    assert ["Task" in one for one in noticed] == [True]


async def test_awaiting_is_not_reported():
    loopwatch.drain()
    await asyncio.sleep(loopwatch.LIMIT_S + 0.1)
    assert loopwatch.drain() == []


async def test_blocking_calls_of_test_tools_are_not_reported():
    @loopwatch.of_the_test
    def tool() -> None:
        time.sleep(loopwatch.LIMIT_S + 0.1)

    loopwatch.drain()
    await asyncio.sleep(0)
    tool()
    await asyncio.sleep(0)
    assert loopwatch.drain() == []


async def test_time_that_other_guests_had_is_not_reported(monkeypatch):
    began = time.perf_counter()
    monkeypatch.setattr(loopwatch, "stolen_s", lambda: time.perf_counter() - began)
    loopwatch.drain()
    await asyncio.sleep(loopwatch._LOOK_EVERY_S)
    time.sleep(loopwatch.LIMIT_S + 0.1)  # noqa: ASYNC251
    await asyncio.sleep(0)
    assert loopwatch.drain() == []


@pytest.mark.slow_loop
@pytest.mark.long(reason="every test of `make test` runs under the same check")
async def test_only_programs_that_a_test_itself_waits_for_are_not_reported():
    source = f"import subprocess; subprocess.run(['sleep', '{BLOCKED_S}'])"
    loopwatch.drain()
    await asyncio.sleep(0)
    exec(compile(source, __file__, "exec"))
    await asyncio.sleep(0)
    assert loopwatch.drain() == []
    for _ in range(ATTEMPTS):
        exec(compile(source, sandkasten.__file__, "exec"))
        await asyncio.sleep(0)
        if noticed := loopwatch.drain():
            break
    assert len(noticed) == 1


async def test_the_detector_needs_no_descriptor():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A callback long after the last one reads the time of its thread anew.
    time.sleep(2 * loopwatch._LOOK_EVERY_S)  # noqa: ASYNC251
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        await asyncio.sleep(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
