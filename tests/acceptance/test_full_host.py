"""Files that a file method has acknowledged stay: on a full host, and after a power cut."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from sandkasten import QuotaExceeded, Sandbox, SandkastenError, Workspaces
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten_runtime.linux.state_layout import read_pid
from sandkasten_runtime.linux.storage import workspace_image
from tests.acceptance.conftest import POOL_SIZE
from tests.daemon.process import ask, running
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.root,
    pytest.mark.promise("P74"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk"),
]
MB = 1024 * 1024
DISK_MB = 220


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory on a file system of its own, of DISK_MB, and no warm pool."""
    monkeypatch.setenv(POOL_SIZE, "0")
    place = Path(tempfile.mkdtemp(prefix="pytest-of-disk-", dir="/var/tmp"))
    disk, data_dir = place / "disk.img", place / "data"
    data_dir.mkdir(mode=0o700)
    with disk.open("wb") as file:
        file.truncate(DISK_MB * MB)
    subprocess.run(["mkfs.ext4", "-q", "-F", disk], check=True)
    subprocess.run(["mount", "-o", "loop", disk, data_dir], check=True)
    try:
        yield data_dir
        assert list(data_dir.glob("cells/*")) == []
    finally:
        # Fails if something still uses a file there; an idle process closes the audit log soon.
        deadline = time.monotonic() + PATIENCE_S
        while subprocess.run(["umount", data_dir], check=False).returncode:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        # The audit log writes what it could not write on the full disk, maybe only now.
        while place.exists():
            shutil.rmtree(place, ignore_errors=True)
            assert time.monotonic() < deadline


def fill(data_dir: Path) -> None:
    """Leave no free byte on the disk."""
    with open(data_dir / "fill", "ab", buffering=0) as file:
        for size in (MB, 4096):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
        os.fsync(file.fileno())


def cut_power(data_dir: Path, box: Sandbox) -> None:
    """Lose what the workspace's file system has in memory only."""
    known = read_pid(data_dir / "cells" / box.id)
    assert known is not None
    volume = workspace_image.pin_volume(known[0], WORKSPACE)
    assert volume is not None
    workspace_image.abandon(volume)
    os.close(volume)


def opened_again(data_dir: Path, workspace: str) -> Sandbox:
    """The space of a sandbox that has ended may be free a moment later."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return Sandbox(data_dir=data_dir, workspace=workspace)
        except QuotaExceeded:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_acknowledged_changes_survive_a_power_cut(small_disk, tmp_path):
    data = os.urandom(300_000)
    for number in range(20):
        (tmp_path / f"f{number}").write_bytes(data)
    with Sandbox(data_dir=small_disk, workspace="kept", limits={"workspace_mb": 32}) as box:
        box.write("deep/file", data)
        box.write("moved", data)
        box.write("removed", data)
        box.move("moved", "there")
        box.remove("removed")
        box.mkdir("made/below")
        box.upload(tmp_path, "tree")
        cut_power(small_disk, box)
    with Sandbox(data_dir=small_disk, workspace="kept") as box:
        assert {entry.name for entry in box.ls()} == {"deep", "there", "made", "tree"}
        assert [entry.name for entry in box.ls("made")] == ["below"]
        for path in ("deep/file", "there", *(f"tree/f{number}" for number in range(20))):
            assert box.read(path) == data, path


@pytest.mark.parametrize("reserve", few(["all", "none"]))
def test_a_full_disk_does_not_affect_other_sandboxes(small_disk, monkeypatch, reserve):
    """B keeps every file that was acknowledged, whatever A and other users of the disk do."""
    monkeypatch.setenv("SANDKASTEN_DISK_RESERVE", reserve)
    monkeypatch.setenv("SANDKASTEN_DISK_MIN_FREE_MB", "0")
    limits = {"workspace_mb": 100 if reserve == "all" else 500}
    sums: dict[str, str] = {}
    refused: list[SandkastenError] = []
    with (
        Sandbox(data_dir=small_disk, workspace="b", limits={"workspace_mb": 64}) as b,
        Sandbox(data_dir=small_disk, limits=limits) as a,
    ):

        def write(name: str, size: int) -> None:
            data = os.urandom(size)
            try:
                b.write(name, data)
            except SandkastenError as exc:
                refused.append(exc)
            else:
                sums[name] = hashlib.sha256(data).hexdigest()

        write("before", 20 * MB)
        a.exec("head -c 400M /dev/zero >big; sync; true", timeout_seconds=60)
        fill(small_disk)
        for number in range(10):
            write(f"api{number}", 1 * MB)
        assert {error.code for error in refused} <= {"QUOTA_EXCEEDED"}
        assert (refused == []) is (reserve == "all"), refused
        if reserve == "all":
            assert b.exec("echo works >command").exit_code == 0
    (small_disk / "fill").unlink()
    with opened_again(small_disk, "b") as b:
        assert {name: hashlib.sha256(b.read(name)).hexdigest() for name in sums} == sums
    Workspaces(data_dir=small_disk).delete("b")


@pytest.mark.parametrize("name", ["b", None])
def test_a_reserved_workspace_is_mounted_so_that_no_block_goes_back(small_disk, name):
    with Sandbox(data_dir=small_disk, workspace=name, limits={"workspace_mb": 32}) as box:
        mounts = box.exec("grep ' ext4 ' /proc/mounts").stdout
    assert "noinit_itable" in mounts
    assert ",discard" not in mounts


@pytest.mark.long(reason="it waits for seven seconds; `make test` looks at the mount")
def test_the_kernel_gives_no_block_of_a_reserved_workspace_back(small_disk):
    """By default it clears the inode tables of a new file system up to five seconds later."""
    volume = small_disk / "workspaces" / "b" / "volume"
    with Sandbox(data_dir=small_disk, workspace="b", limits={"workspace_mb": 32}) as box:
        time.sleep(7)
        assert box.exec("true").exit_code == 0
        assert volume.stat().st_blocks * 512 >= 32 * MB
    Workspaces(data_dir=small_disk).delete("b")


def test_space_that_cannot_be_reserved_is_not_promised(small_disk):
    with pytest.raises(QuotaExceeded) as caught:
        Sandbox(data_dir=small_disk, limits={"workspace_mb": 500})
    assert "disk.reserve" in caught.value.hint
    with pytest.raises(QuotaExceeded):
        Workspaces(data_dir=small_disk).create("large", size_mb=500)
    assert Workspaces(data_dir=small_disk).list() == []


async def test_a_daemon_that_was_killed_on_a_full_disk_starts_there(small_disk):
    """It lists, serves and destroys; a create is refused as what it is, every time."""
    environ = {"SANDKASTEN_DISK_MIN_FREE_MB": "0", "SANDKASTEN_DISK_RESERVE": "none"}
    async with running(small_disk, environ=environ) as daemon, aiohttp.ClientSession() as http:
        _, made = await ask(http, "POST", f"{daemon.url}/v1/sessions", {})
        here = f"/v1/sessions/{made['id']}"
        fill(small_disk)
        for _ in range(2):
            await daemon.kill()
            fill(small_disk)
            await daemon.start()
            status, listed = await ask(http, "GET", f"{daemon.url}/v1/sessions")
            assert (status, [one["id"] for one in listed]) == (200, [made["id"]])
        fill(small_disk)
        body = {"cmd": "echo hello"}
        status, told = await ask(http, "POST", f"{daemon.url}{here}/exec", body)
        assert (status, told.get("stdout")) in ((200, "hello\n"), (507, None)), told
        refused = [await ask(http, "POST", f"{daemon.url}/v1/sessions", {}) for _ in range(15)]
        codes = [(status, told.get("code"), bool(told.get("hint"))) for status, told in refused]
        assert codes == [(507, "QUOTA_EXCEEDED", True)] * 15, refused
        assert (await ask(http, "DELETE", f"{daemon.url}{here}"))[0] in (200, 204)
