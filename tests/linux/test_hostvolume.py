"""Volumes mounted on the host: size, owners, and complete removal."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    IsolationRefused,
    QuotaExceeded,
    WorkspaceDamaged,
)
from sandkasten.model.sandbox.cell_spec import Volume
from sandkasten.model.sandbox.limits import MIB
from sandkasten_runtime.linux.programs import Programs
from sandkasten_runtime.linux.storage import ext4, host_volume, mountinfo, workspace_image
from tests.linux.hostvolumes import devices, eventually, mounts, nothing_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot mount images")
USER = 1000


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for left in tmp_path.iterdir():
        if left.is_dir():
            host_volume.release(left)
    assert mounts(tmp_path) == []
    assert devices(tmp_path) == []


@pytest.fixture
def kept_volume(tmp_path: Path) -> Volume:
    path = tmp_path / "kept.img"
    ext4.make(path, 64 * MIB, threading.Event())
    return Volume(os.fspath(path), "image")


def fill(path: Path) -> int:
    """Return how many bytes could be written before the disk was full."""
    written = 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            written += os.write(fd, b"x" * MIB)
    except OSError as exc:
        assert exc.errno == errno.ENOSPC  # noqa: PT017
        return written
    finally:
        os.close(fd)


def sound(image: str) -> bool:
    done = subprocess.run(["e2fsck", "-fn", image], capture_output=True, check=False)
    return done.returncode == 0


def private_namespace() -> subprocess.Popen[bytes]:
    """A process with private copies of all current mounts."""
    process = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 600"],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


@pytest.mark.promise("P26")
def test_a_host_volume_has_exactly_its_size(base: Path) -> None:
    made = host_volume.make(base / "v", 32 * MIB, owner=USER, templates=base)
    assert 24 * MIB < fill(made.workspace / "big") < 32 * MIB
    with pytest.raises(OSError, match="No space left"):
        (made.home / "more").write_bytes(b"x" * MIB)
    (made.workspace / "big").unlink()
    (made.home / "more").write_bytes(b"x" * MIB)


def test_both_directories_belong_to_the_owner_and_the_mount_is_restricted(base: Path) -> None:
    made = host_volume.make(base / "v", 8 * MIB, owner=USER, templates=base)
    assert made == host_volume.MountedVolume(base / "v/mnt/workspace", base / "v/mnt/home")
    for place in (made.workspace, made.home):
        seen = place.stat()
        assert (seen.st_uid, seen.st_gid, seen.st_mode) == (USER, USER, 0o040755)
    flags = os.statvfs(made.workspace).f_flag
    assert flags & os.ST_NOSUID
    assert flags & os.ST_NODEV
    assert flags & os.ST_NOATIME
    line = next(m for m in mountinfo.own() if m.point == str(base / "v/mnt"))
    assert line.kind == "ext4"
    assert sorted(os.listdir(base / "v")) == ["mnt", "volume.img"]


def test_releasing_removes_everything_and_succeeds_twice(base: Path) -> None:
    made = host_volume.make(base / "v", 64 * MIB, owner=USER, templates=base)
    (made.workspace / "x").write_bytes(b"x" * 10 * MIB)
    assert devices(base) == [str(base / "v/volume.img")]
    host_volume.release(base / "v")
    nothing_of(base / "v")
    host_volume.release(base / "v")


@pytest.mark.promise("P29")
def test_a_link_that_a_sandbox_made_is_not_followed(base: Path) -> None:
    canary = base / "canary"
    canary.write_text("here")
    made = host_volume.make(base / "v", 8 * MIB, owner=USER, templates=base)
    (made.workspace / "out").symlink_to(base)
    (made.workspace / "deep").symlink_to("../../..")
    # An engine may have made this while nothing was mounted, and a sandbox may have written there.
    mountinfo.detach(str(base / "v/mnt"))
    (base / "v/mnt/workspace").mkdir()
    (base / "v/mnt/workspace/out").symlink_to(base)
    (base / "v/out").symlink_to(base)
    host_volume.release(base / "v")
    nothing_of(base / "v")
    assert canary.read_text() == "here"


def test_a_release_blocked_by_an_open_file_can_be_repeated(base: Path) -> None:
    made = host_volume.make(base / "v", 8 * MIB, owner=USER, templates=base)
    fd = os.open(made.workspace, os.O_RDONLY)
    try:
        with pytest.raises(BackendUnavailable, match="still holds") as caught:
            host_volume.release(base / "v", timeout_s=0.05)
        assert "a file in it is open" in caught.value.hint
        assert mounts(base / "v") == []
    finally:
        os.close(fd)
    host_volume.release(base / "v")
    nothing_of(base / "v")


@pytest.mark.promise("P29")
def test_copies_in_other_mount_namespaces_do_not_keep_the_device(base: Path) -> None:
    host_volume.make(base / "v", 8 * MIB, owner=USER, templates=base)
    device = workspace_image.device_of(str(base / "v/volume.img"))
    assert device is not None
    other = private_namespace()
    try:
        assert mountinfo.holders(device) != []
        host_volume.release(base / "v")
        nothing_of(base / "v")
        seen = mountinfo.parse(Path(f"/proc/{other.pid}/mountinfo").read_bytes())
        assert [m.point for m in seen if m.point.startswith(str(base))] == []
    finally:
        end(other)


def test_a_process_that_binds_the_volume_elsewhere_is_named(base: Path) -> None:
    made = host_volume.make(base / "v", 8 * MIB, owner=USER, templates=base)
    (base / "elsewhere").mkdir()
    script = f"mount --bind {made.workspace} {base}/elsewhere; echo; exec sleep 600"
    other = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(BackendUnavailable) as caught:
            host_volume.release(base / "v", timeout_s=0.05)
        assert str(other.pid) in caught.value.hint
    finally:
        end(other)
    host_volume.release(base / "v")
    nothing_of(base / "v")


def test_a_shared_parent_propagates_mount_and_unmount(base: Path) -> None:
    """As under systemd, in a private namespace: peers see the mount appear and disappear."""
    script = f"""
import os, subprocess, sys
from pathlib import Path
from sandkasten_runtime.linux.storage import host_volume
base = Path({str(base)!r})
peer = subprocess.Popen(
    ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo; exec sleep 600"],
    stdout=subprocess.PIPE)
peer.stdout.readline()
seen = lambda: str(base / "v/mnt") in Path(f"/proc/{{peer.pid}}/mountinfo").read_text()
host_volume.make(base / "v", {8 * MIB}, owner={USER}, templates=base)
print(seen())
host_volume.release(base / "v")
print(seen(), (base / "v").exists())
peer.kill()
peer.wait()
"""
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "shared", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("True\nFalse False\n", "")
    nothing_of(base / "v")


def test_a_foreign_mount_at_that_path_is_not_touched(base: Path) -> None:
    host_volume.make(base / "v", 8 * MIB, owner=USER, templates=base)
    (base / "v/other").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "canary", base / "v/other"], check=True)
    try:
        (base / "v/other/x").write_text("here")
        with pytest.raises(BackendUnavailable, match="something else is mounted"):
            host_volume.release(base / "v")
        assert (base / "v/other/x").read_text() == "here"
    finally:
        subprocess.run(["umount", base / "v/other"], check=True)
    host_volume.release(base / "v")
    nothing_of(base / "v")


def test_an_existing_volume_is_neither_reused_nor_changed(base: Path) -> None:
    made = host_volume.make(base / "v", 8 * MIB, owner=USER, templates=base)
    (made.workspace / "x").write_text("mine")
    with pytest.raises(Conflict):
        host_volume.make(base / "v", 8 * MIB, owner=USER, templates=base)
    assert (made.workspace / "x").read_text() == "mine"


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_volume_is_created_only_in_a_private_directory(base: Path, kind: str) -> None:
    place = base / "v"
    if kind == "open":
        place.mkdir(mode=0o755)
    elif kind == "link":
        (base / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(base / "elsewhere")
    else:
        place.write_text("")
    with pytest.raises(IsolationRefused):
        host_volume.make(place, 8 * MIB, owner=USER, templates=place.parent)
    if kind == "link":
        with pytest.raises(BackendUnavailable):
            host_volume.release(place)
        place.unlink()


def test_a_failed_create_keeps_the_callers_directory(base: Path) -> None:
    (base / "v").mkdir(mode=0o700)
    (base / "v/state").write_text("the caller's")
    nowhere = Programs(base / "runner", base / "launcher")
    with pytest.raises(BackendUnavailable, match="launcher"):
        host_volume.make(base / "v", 8 * MIB, owner=USER, templates=base, programs=nowhere)
    assert os.listdir(base / "v") == ["state"]
    assert devices(base) == []
    with pytest.raises(BackendUnavailable, match="launcher"):
        host_volume.make(base / "w", 8 * MIB, owner=USER, templates=base, programs=nowhere)
    nothing_of(base / "w")


def test_a_host_volume_on_a_full_disk_is_a_typed_error(base: Path) -> None:
    small = base / "small"
    small.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "x", small], check=True)
    try:
        workspace_image.template(small, 64 * MIB)
        fill(small / "rest")
        with pytest.raises(QuotaExceeded):
            host_volume.make(small / "v", 64 * MIB, owner=USER, templates=small)
        nothing_of(small / "v")
    finally:
        subprocess.run(["umount", small], check=True)


# ---- kept ones


@pytest.mark.promise("P22")
def test_two_users_share_one_loop_device_until_the_last_release(
    base: Path, kept_volume: Volume
) -> None:
    one = host_volume.open_kept(base / "one", kept_volume, owner=USER)
    two = host_volume.open_kept(base / "two", kept_volume, owner=USER)
    assert devices(base) == [kept_volume.path]
    (one.workspace / "x").write_text("from one")
    (one.home / "y").write_text("at home")
    assert (two.workspace / "x").read_text() == "from one"
    host_volume.release(base / "one")
    assert not (base / "one").exists()
    assert devices(base) == [kept_volume.path]
    (two.workspace / "x").write_text("from two")
    host_volume.release(base / "two")
    assert devices(base) == []
    assert sound(kept_volume.path)
    again = host_volume.open_kept(base / "three", kept_volume, owner=USER)
    assert (again.workspace / "x").read_text() == "from two"
    assert (again.home / "y").read_text() == "at home"


def test_ids_on_disk_are_those_inside_with_user_namespaces(base: Path, kept_volume: Volume) -> None:
    made = host_volume.open_kept(base / "v", kept_volume, owner=200000 + USER, first_id=200000)
    assert made.workspace.stat().st_uid == 200000 + USER
    ids = 200000 + USER
    subprocess.run(["touch", "x"], cwd=made.workspace, check=True, user=ids, group=ids)
    host_volume.release(base / "v")
    nothing_of(base / "v")
    plain = host_volume.open_kept(base / "w", kept_volume, owner=USER)
    assert (plain.workspace / "x").stat().st_uid == USER


def test_a_kept_directory_persists_and_is_bound_with_restrictions(base: Path) -> None:
    place = base / "tree"
    place.mkdir()
    volume = Volume(str(place), "directory")
    one = host_volume.open_kept(base / "one", volume, owner=USER)
    two = host_volume.open_kept(base / "two", volume, owner=USER)
    (one.workspace / "x").write_text("kept")
    assert (two.workspace / "x").read_text() == "kept"
    assert os.statvfs(one.workspace).f_flag & os.ST_NOSUID
    for name in ("one", "two"):
        host_volume.release(base / name)
        nothing_of(base / name)
    assert (place / "workspace/x").read_text() == "kept"
    assert (place / "workspace").stat().st_uid == USER
    shutil.rmtree(place)


@pytest.mark.promise("P29")
def test_a_workspace_whose_directory_is_a_link_is_damaged(base: Path, kept_volume: Volume) -> None:
    made = host_volume.open_kept(base / "one", kept_volume, owner=USER)
    made.workspace.rmdir()
    made.workspace.symlink_to(base)
    host_volume.release(base / "one")
    owner = base.stat().st_uid
    with pytest.raises(WorkspaceDamaged, match="not a directory"):
        host_volume.open_kept(base / "two", kept_volume, owner=USER)
    assert base.stat().st_uid == owner
    nothing_of(base / "two")
    eventually(lambda: devices(base) == [], "the device stays")


def test_a_file_without_a_file_system_is_damaged(base: Path) -> None:
    (base / "no.img").write_bytes(bytes(MIB))
    with pytest.raises(WorkspaceDamaged):
        host_volume.open_kept(base / "v", Volume(str(base / "no.img"), "image"), owner=USER)
    nothing_of(base / "v")


# ---- supported


def test_support_is_detected_before_the_directory_exists(base: Path) -> None:
    assert host_volume.supported(base) is None
    assert host_volume.supported(base / "not/yet") is None


def test_missing_host_volume_requirements_are_named(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Programs(base / "runner", base / "launcher")
    assert host_volume.supported(base, nowhere) == "sandkasten-launch is not there"
    with monkeypatch.context() as patch:
        patch.setattr(workspace_image, "mkfs_program", lambda: None)
        assert host_volume.supported(base) == "mkfs.ext4 is not installed"
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: USER)
        assert host_volume.supported(base) == "only root can mount an image"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["unshare", "--user", "--map-root-user"], "root of a user namespace"),
        (["setpriv", "--bounding-set", "-sys_admin"], "CAP_SYS_ADMIN"),
        (["unshare", "--mount", "--propagation", "private"], "mounts of its own"),
        (["unshare", "--mount", "--propagation", "slave"], "mounts of its own"),
    ],
)
def test_a_process_that_cannot_serve_an_engine_is_reported(
    base: Path, words: list[str], answer: str
) -> None:
    script = f"""
from pathlib import Path
from sandkasten_runtime.linux.storage import host_volume
print(host_volume.supported(Path({str(base)!r})))
"""
    done = subprocess.run(
        [*words, sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer in done.stdout
