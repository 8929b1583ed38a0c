"""A host volume whose create or release is killed at any step; the next release cleans up."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sandkasten.errors import BackendUnavailable, SandkastenError
from sandkasten.model.sandbox.cell_spec import Volume
from sandkasten.model.sandbox.limits import MIB
from sandkasten_runtime.linux import launcher
from sandkasten_runtime.linux.storage import ext4, host_volume, workspace_image
from tests.linux.hostvolumes import (
    LAUNCHER,
    devices,
    eventually,
    killed_at,
    launcher_killed_at,
    mounts,
    nothing_of,
)
from tests.patience import PATIENCE_S

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot mount images"),
    pytest.mark.timeout(1_200),
    pytest.mark.promise("P29"),
]
USER = 1000
# More than any of them takes: each test sees that it came to the end.
_MANY = 400
# System calls of the launcher, both borders of each, from before the device on.
# Borders of system calls before the end, each of which is tried; every day the last of them.
_TAIL = 60 if os.environ.get("TEST_SANDKASTEN_LONG") == "1" else 15


@pytest.fixture
def kept_volume(tmp_path: Path) -> Volume:
    path = tmp_path / "kept.img"
    ext4.make(path, 16 * MIB, threading.Event())
    return Volume(os.fspath(path), "image")


def test_create_can_be_killed_before_any_of_its_steps(tmp_path: Path) -> None:
    workspace_image.template(tmp_path, 8 * MIB)

    def work() -> None:
        host_volume.make(tmp_path / "v", 8 * MIB, owner=USER, templates=tmp_path)

    ended = next(step for step in range(1, _MANY) if not _survives(step, work, tmp_path / "v"))
    assert ended > 8


def test_opening_a_kept_volume_can_be_killed_before_any_of_its_steps(
    tmp_path: Path, kept_volume: Volume
) -> None:
    def work() -> None:
        host_volume.open_kept(tmp_path / "v", kept_volume, owner=USER)

    ended = next(step for step in range(1, _MANY) if not _survives(step, work, tmp_path / "v"))
    assert ended > 8
    assert devices(tmp_path) == []


def _survives(step: int, work: object, directory: Path) -> bool:
    assert callable(work)
    killed = killed_at(step, work)
    host_volume.release(directory)
    nothing_of(directory)
    return killed


@pytest.mark.long(reason="`make test` kills it while it creates and while it opens")
def test_release_can_be_killed_before_any_of_its_steps(tmp_path: Path) -> None:
    for step in range(1, _MANY):
        made = host_volume.make(tmp_path / "v", 8 * MIB, owner=USER, templates=tmp_path)
        (made.workspace / "x").write_bytes(b"x" * MIB)
        if not killed_at(step, lambda: host_volume.release(tmp_path / "v")):
            nothing_of(tmp_path / "v")
            assert step > 8
            return
        host_volume.release(tmp_path / "v")
        nothing_of(tmp_path / "v")
    pytest.fail("release did not end")


@pytest.mark.parametrize(
    "kind",
    [
        "own",
        pytest.param("kept", marks=pytest.mark.long(reason="`make test` has one of its own")),
        pytest.param("shifted", marks=pytest.mark.long(reason="`make test` has one of its own")),
    ],
)
def test_the_launcher_can_be_killed_at_any_system_call(
    tmp_path: Path, kept_volume: Volume, kind: str
) -> None:
    template = workspace_image.template(tmp_path, 8 * MIB)
    directory = tmp_path / "v"
    first = 200000 if kind == "shifted" else 0

    def run(step: int | None) -> int:
        directory.mkdir(mode=0o700)
        volume = {"kind": "image", "path": kept_volume.path, "keep": True}
        if kind == "own":
            volume = {"kind": "image", "path": str(directory / "volume.img"), "keep": False}
            workspace_image.copy_template(template, directory / "volume.img")
        else:
            (directory / "kept").write_text(f'{{"path": "{kept_volume.path}", "kind": "image"}}')
        (directory / "mnt").mkdir()
        place = {
            "volume": volume,
            "directory": str(directory),
            "name": "mnt",
            "owner": USER,
            "id_map": {"base": first, "count": 65536, "expect": USER} if first else None,
        }
        past = launcher_killed_at(step, {"visible": place})
        if step is None:
            assert len(mounts(directory)) == (2 if first else 1)
        host_volume.release(directory)
        nothing_of(directory)
        return past

    # Before these it only reads: its own start, and every loop device there is.
    whole = run(None)
    for step in (*range(1, whole - _TAIL, 25), *range(whole - _TAIL, whole)):
        run(step)
    assert devices(tmp_path) == []


def test_a_launcher_that_outlives_its_caller_leaves_nothing(tmp_path: Path) -> None:
    """The caller dies at once and its launcher continues; in any order, nothing is left."""
    workspace_image.template(tmp_path, 8 * MIB)
    script = f"""
from pathlib import Path
from sandkasten_runtime.linux.storage import host_volume
base = Path({str(tmp_path)!r})
print(flush=True)
host_volume.make(base / "v", {8 * MIB}, owner={USER}, templates=base)
"""
    for attempt in range(12):
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(attempt * 0.001)
            child.send_signal(signal.SIGKILL)
        host_volume.release(tmp_path / "v")
        nothing_of(tmp_path / "v")
    assert mounts(tmp_path) == []


def test_a_launcher_and_a_release_take_turns(tmp_path: Path) -> None:
    """A launcher that started before the release waits, and then finds no place to mount."""
    directory = tmp_path / "v"
    (directory / "mnt").mkdir(parents=True)
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(BackendUnavailable, match="still using"):
            host_volume.release(directory, timeout_s=0.02)
        plan = json.dumps({"visible": bound(tmp_path, directory)}).encode()
        late = subprocess.Popen([LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert late.stdin is not None
        late.stdin.write(plan)
        late.stdin.close()
        late.stdin = None
        eventually(lambda: _waits(late.pid), "the launcher does not wait for its turn")
        shutil.rmtree(directory)
    finally:
        os.close(held)
    said, _ = late.communicate(timeout=PATIENCE_S)
    assert json.loads(said)["error"]["errno"] == errno.ENOENT
    assert mounts(tmp_path) == []


def _waits(pid: int) -> bool:
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and str(pid) in line.split() for line in lines)


def bound(source: Path, directory: Path) -> dict[str, object]:
    return {
        "volume": {"kind": "directory", "path": str(source)},
        "directory": str(directory),
        "name": "mnt",
        "owner": USER,
        "id_map": None,
    }


def test_a_launcher_that_comes_too_late_mounts_nothing(tmp_path: Path) -> None:
    with pytest.raises(SandkastenError, match="No such file"):
        launcher.launch(LAUNCHER, {"visible": bound(tmp_path, tmp_path / "gone")})
    assert mounts(tmp_path) == []
