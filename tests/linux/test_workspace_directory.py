"""Named workspaces on disk: complete or absent, checked after a crash, equal on every kind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    Cancelled,
    Conflict,
    InvalidRequest,
    QuotaExceeded,
    WorkspaceDamaged,
    WorkspaceNotFound,
)
from sandkasten.model.sandbox.workspace import StoredWorkspace
from sandkasten_runtime.linux.storage import ext4, tree_copy, workspace_directory, workspace_image
from sandkasten_runtime.linux.storage.workspace_directory import WorkspaceDirectory
from tests.linux.hostvolumes import devices, eventually
from tests.ordinary_user import OrdinaryUser
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

pytestmark = pytest.mark.anyio

MB = 1024 * 1024
NOT_SET = threading.Event()


@pytest.fixture(params=["image", "directory"])
def workspaces(request, tmp_path):
    """Every kind of workspace storage; one contract."""
    return WorkspaceDirectory(tmp_path / "workspaces", images=request.param == "image")


@pytest.fixture
def images(tmp_path) -> WorkspaceDirectory:
    return WorkspaceDirectory(tmp_path / "workspaces", images=True)


@pytest.fixture
def directories(tmp_path) -> WorkspaceDirectory:
    return WorkspaceDirectory(tmp_path / "workspaces", images=False)


@contextlib.contextmanager
def mounted(volume: Path, at: Path):
    at.mkdir()
    subprocess.run(["mount", "-o", "loop", volume, at], check=True, timeout=FAR_TOO_LATE_S)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True, timeout=FAR_TOO_LATE_S)
        at.rmdir()
        # A sandbox that another test starts has a copy of the mount for a moment, and the file
        # system writes its last figures when the last copy is gone.
        eventually(lambda: devices(volume.parent) == [], f"{volume} is still in use")


# ---- the contract


async def test_a_created_volume_is_found_again(workspaces):
    made = await workspaces.create("w", 64 * MB, 12.5)
    assert (made.name, made.size_bytes, made.created_at) == ("w", 64 * MB, 12.5)
    assert await workspaces.get("w") == made
    assert await workspaces.names() == ["w"]
    assert (await workspaces.open("w", in_use=False)).kind == made.kind
    assert await workspaces.half_made() in ((), [])


async def test_a_volume_name_can_be_created_once(workspaces):
    await workspaces.create("w", 8 * MB, 1.0)
    with pytest.raises(Conflict, match="a workspace named w already"):
        await workspaces.create("w", 16 * MB, 2.0)
    assert (await workspaces.get("w")).size_bytes == 8 * MB
    assert await workspaces.half_made() in ((), [])


async def test_a_missing_volume_is_named(workspaces):
    for attempt in (
        workspaces.get("w"),
        workspaces.open("w", in_use=False),
        workspaces.measure("w"),
        workspaces.copy("w", "x", 1.0),
        workspaces.resize("w", 64 * MB),
        workspaces.remove("w"),
    ):
        with pytest.raises(WorkspaceNotFound, match="no workspace named w"):
            await attempt
    assert await workspaces.names() == []


async def test_a_removed_volume_is_gone_and_its_name_is_free(workspaces):
    await workspaces.create("w", 8 * MB, 1.0)
    await workspaces.remove("w")
    assert await workspaces.names() == []
    assert (await workspaces.create("w", 16 * MB, 2.0)).size_bytes == 16 * MB


async def test_a_copy_has_the_size_of_its_source_and_another_name(workspaces):
    await workspaces.create("w", 16 * MB, 1.0)
    copy = await workspaces.copy("w", "x", 2.0)
    assert (copy.name, copy.size_bytes, copy.created_at) == ("x", 16 * MB, 2.0)
    assert await workspaces.names() == ["w", "x"]
    with pytest.raises(Conflict):
        await workspaces.copy("w", "x", 3.0)
    await workspaces.remove("w")
    assert await workspaces.get("x") == copy


async def test_a_volume_grows_and_never_shrinks(workspaces):
    await workspaces.create("w", 16 * MB, 1.0)
    assert (await workspaces.resize("w", 48 * MB)).size_bytes == 48 * MB
    with pytest.raises(InvalidRequest, match="cannot be made smaller"):
        await workspaces.resize("w", 32 * MB)
    assert (await workspaces.get("w")).size_bytes == 48 * MB


async def test_an_empty_volume_is_measured_as_empty(workspaces):
    await workspaces.create("w", 64 * MB, 1.0)
    measure = await workspaces.measure("w")
    assert measure.used_bytes is not None
    assert measure.used_bytes < 64 * 1024
    assert measure.allocated_bytes is not None
    assert measure.allocated_bytes < 256 * 1024


@pytest.mark.promise("P22")
@pytest.mark.parametrize("name", ["../x", "/etc", "", ".making-x", "a/b"])
async def test_a_path_is_never_accepted_as_a_name(workspaces, name):
    for attempt in (workspaces.get(name), workspaces.create(name, 8 * MB, 1.0)):
        with pytest.raises(InvalidRequest):
            await attempt


# ---- images


async def test_the_kernel_enforces_the_size_and_usage_matches_df(images, tmp_path):
    await images.create("w", 16 * MB, 1.0)
    volume = Path((await images.open("w", in_use=False)).path)
    with mounted(volume, tmp_path / "at") as at:
        (at / "a").write_bytes(b"x" * 5 * MB)
        # What it holds at first belongs to the user inside.
        assert (at.stat().st_uid, at.stat().st_gid) == (1000, 1000)
        with pytest.raises(OSError, match="No space left"):
            (at / "b").write_bytes(b"x" * 20 * MB)
        (at / "b").unlink()
        os.sync()
        figures = os.statvfs(at)
        used = (figures.f_blocks - figures.f_bfree) * figures.f_frsize
    assert (await images.measure("w")).used_bytes == used


async def test_usage_is_correct_before_and_after_growing(images, tmp_path):
    await images.create("w", 16 * MB, 1.0)
    volume = Path((await images.open("w", in_use=False)).path)
    with mounted(volume, tmp_path / "at") as at:
        (at / "a").write_bytes(os.urandom(5 * MB))
        kept = (at / "a").read_bytes()
    await images.resize("w", 600 * MB)
    grown = (await images.measure("w")).used_bytes
    with mounted(volume, tmp_path / "at") as at:
        figures = os.statvfs(at)
        assert figures.f_blocks * figures.f_frsize > 550 * MB
        assert (figures.f_blocks - figures.f_bfree) * figures.f_frsize == grown
        assert (at / "a").read_bytes() == kept


async def test_an_image_is_sparse_and_so_is_its_copy(images, tmp_path):
    await images.create("w", 4096 * MB, 1.0)
    volume = Path((await images.open("w", in_use=False)).path)
    with mounted(volume, tmp_path / "at") as at:
        (at / "a").write_bytes(os.urandom(3 * MB))
    await images.copy("w", "x", 1.0)
    copy = Path((await images.open("x", in_use=False)).path)
    assert os.stat(copy).st_size == os.stat(volume).st_size == 4096 * MB
    assert (await images.measure("x")).allocated_bytes < 64 * MB
    with mounted(copy, tmp_path / "at") as at:
        assert (at / "a").stat().st_size == 3 * MB


def _power_cut(volume: Path, at: Path) -> None:
    """Leave the volume as a power cut during writes would."""
    torn = volume.with_name("torn")
    with mounted(volume, at):
        for number in range(50):
            (at / str(number)).write_bytes(b"x" * 5000)
        subprocess.run(["sync", "-f", at], check=True, timeout=FAR_TOO_LATE_S)
        (at / "0").unlink()
        shutil.copyfile(volume, torn)
    torn.replace(volume)


@pytest.mark.promise("P23")
@pytest.mark.parametrize("size", [8 * MB, 64 * MB])
async def test_a_volume_left_by_a_host_crash_is_repaired_before_use(images, tmp_path, size):
    await images.create("w", size, 1.0)
    volume = Path((await images.open("w", in_use=False)).path)
    _power_cut(volume, tmp_path / "at")
    assert not ext4.look(volume).clean
    await images.open("w", in_use=False)
    assert ext4.look(volume).clean
    with mounted(volume, tmp_path / "at") as at:
        assert len(list(at.glob("[0-9]*"))) in (49, 50)


async def test_a_volume_in_use_is_not_checked(images, tmp_path):
    await images.create("w", 64 * MB, 1.0)
    volume = Path((await images.open("w", in_use=False)).path)
    with mounted(volume, tmp_path / "at"):
        assert not ext4.look(volume).clean
        await images.open("w", in_use=True)
        assert not ext4.look(volume).clean


@pytest.mark.promise("P23")
async def test_a_volume_that_is_still_mounted_is_neither_checked_nor_copied(
    images, tmp_path, monkeypatch
):
    monkeypatch.setattr(workspace_directory, "_SETTLE_S", 0.1)
    await images.create("w", 16 * MB, 1.0)
    volume = Path((await images.open("w", in_use=False)).path)
    assert not workspace_image.attached(str(volume))
    with mounted(volume, tmp_path / "at"):
        assert workspace_image.attached(str(volume))
        for attempt in (
            images.open("w", in_use=False),
            images.copy("w", "x", 1.0),
            images.resize("w", 32 * MB),
        ):
            with pytest.raises(Busy, match="still attached to a loop device"):
                await attempt
    assert await images.names() == ["w"]
    await images.open("w", in_use=False)


def _ruin(volume: Path) -> bytes:
    with volume.open("rb+") as file:
        file.seek(1024 + 58)
        file.write(b"\0\0")  # not cleanly unmounted
        file.seek(4096)
        file.write(random.Random(7).randbytes(400 * 1024))  # descriptors, bitmaps, tables
    return volume.read_bytes()


def _bytes(volume: Path) -> bytes:
    return volume.read_bytes()


async def test_a_file_system_beyond_repair_is_reported_and_not_changed(images):
    await images.create("w", 64 * MB, 1.0)
    volume = Path((await images.open("w", in_use=False)).path)
    before = _ruin(volume)
    with pytest.raises(WorkspaceDamaged, match="file system of workspace w is damaged") as told:
        await images.open("w", in_use=False)
    assert "e2fsck -y" in told.value.hint
    # A preening check may note that it looked; it changes no content.
    assert _bytes(volume)[2 * MB :] == before[2 * MB :]


def _harm(volume: Path, how: str) -> None:
    if how == "gone":
        volume.unlink()
    elif how == "zeros":
        volume.write_bytes(bytes(16 * MB))
    else:
        os.truncate(volume, 0 if how == "empty" else 3 * MB)


@pytest.mark.parametrize("harm", ["empty", "cut", "zeros", "gone"])
async def test_an_invalid_volume_is_named(images, harm):
    await images.create("w", 16 * MB, 1.0)
    _harm(Path((await images.open("w", in_use=False)).path), harm)
    with pytest.raises(WorkspaceDamaged):
        await images.open("w", in_use=False)
    await images.remove("w")
    assert await images.names() == []


@contextlib.contextmanager
def small_disk(at: Path, size: str):
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


@pytest.mark.promise("P23")
async def test_creating_a_volume_on_a_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    with small_disk(tmp_path / "small", "32k") as small:
        kept = WorkspaceDirectory(small / "workspaces", images=True)
        with pytest.raises(QuotaExceeded, match="the disk is full"):
            await kept.create("w", 64 * MB, 1.0)
        assert await kept.names() == []
        assert os.listdir(small / "workspaces") == []


async def test_a_copy_to_a_full_disk_leaves_the_source_and_nothing_else(tmp_path):
    with small_disk(tmp_path / "small", "6m") as small:
        kept = WorkspaceDirectory(small / "workspaces", images=True)
        await kept.create("w", 64 * MB, 1.0)
        with mounted(Path((await kept.open("w", in_use=False)).path), tmp_path / "at") as at:
            (at / "a").write_bytes(os.urandom(4 * MB))
        with pytest.raises(QuotaExceeded):
            await kept.copy("w", "x", 1.0)
        assert os.listdir(small / "workspaces") == ["w"]


async def test_without_the_tools_the_package_is_named(images, monkeypatch):
    monkeypatch.setattr(ext4, "_WHERE", "/nonexistent")
    with pytest.raises(BackendUnavailable) as told:
        await images.create("w", 8 * MB, 1.0)
    assert told.value.hint == "apt-get install e2fsprogs"
    assert await images.names() == []


# ---- descriptions, leftovers, cancellation


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "{}", '{"name": "other", "kind": "image", "size_bytes": 1}',
        '{"name": "w", "kind": "socket", "size_bytes": 1, "created_at": 1}',
        '{"name": "w", "kind": "image", "size_bytes": -1, "created_at": 1}',
        '{"name": "w", "kind": "image", "size_bytes": true, "created_at": 1}',
        '{"name": "w", "kind": "image", "size_bytes": 5, "created_at": 1e999}',
        "x" * 100_000, "[" * 60_000, "\udcff",
    ],
)  # fmt: skip
async def test_a_volume_with_unreadable_metadata_is_reported_and_deletable(images, tmp_path, text):
    await images.create("w", 8 * MB, 1.0)
    await images.create("x", 8 * MB, 1.0)
    meta = tmp_path / "workspaces" / "w" / "meta.json"
    meta.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(WorkspaceDamaged, match=r"workspace w is damaged: meta\.json"):
        await images.get("w")
    assert await images.names() == ["w", "x"]
    await images.remove("w")
    assert await images.names() == ["x"]


async def test_a_half_created_volume_is_not_listed_and_can_be_cleared(images, tmp_path):
    root = tmp_path / "workspaces"
    await images.create("w", 8 * MB, 1.0)
    for left in (".making-0011aabb-w", ".making-0011aabb-new", ".removing-0011aabb-a-b.c"):
        (root / left / "tree" / "deep").mkdir(parents=True)
    (root / ".making-0011aabb-..").mkdir()
    (root / "Not A Name").mkdir()
    (root / "file").write_text("")
    assert await images.names() == ["w"]
    assert await images.half_made() == ["a-b.c", "new", "w"]
    for name in await images.half_made():
        await images.clear(name)
    assert await images.half_made() == []
    assert (await images.get("w")).name == "w"


async def test_deleting_while_creating_ends_with_one_or_none(images):
    """Without the engine's locks: never a partial workspace."""
    for _ in range(20):
        outcome = await asyncio.gather(
            images.create("w", 8 * MB, 1.0), images.remove("w"), return_exceptions=True
        )
        for one in outcome:
            assert one is None or isinstance(one, StoredWorkspace | WorkspaceNotFound)
        for name in await images.names():
            await images.open(name, in_use=False)
            await images.remove(name)
        assert await images.half_made() == []


async def test_concurrent_creates_of_one_name_create_one_volume(images):
    made = await asyncio.gather(
        *(images.create("w", 8 * MB, float(i)) for i in range(8)), return_exceptions=True
    )
    whole = [one for one in made if isinstance(one, StoredWorkspace)]
    assert whole == [await images.get("w")]
    assert {type(one) for one in made} == {StoredWorkspace, Conflict}
    assert await images.half_made() == []


def _fill(tree: Path, files: int) -> None:
    for number in range(files):
        (tree / str(number)).write_bytes(b"x" * 100)


async def test_a_cancelled_copy_has_ended_when_the_call_returns(directories, tmp_path, monkeypatch):
    await directories.create("w", 8 * MB, 1.0)
    tree = Path((await directories.open("w", in_use=False)).path)
    await asyncio.to_thread(_fill, tree, 3000)
    begun, copy_tree = threading.Event(), tree_copy.copy_tree

    def held(source: Path, target: Path, stop: threading.Event) -> None:
        begun.set()
        # A copy that is over before it is cancelled shows nothing.
        assert stop.wait(PATIENCE_S)
        copy_tree(source, target, stop)

    monkeypatch.setattr(tree_copy, "copy_tree", held)
    copying = asyncio.ensure_future(directories.copy("w", "x", 1.0))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert os.listdir(tmp_path / "workspaces") == ["w"]


def test_a_program_is_ended_when_its_caller_is_cancelled():
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        ext4.command(("sleep", "60"), stop, 30)


def test_a_program_that_takes_too_long_is_ended():
    with pytest.raises(BackendUnavailable, match="did not end within"):
        ext4.command(("sleep", "60"), NOT_SET, 0.05)


# ---- directories


async def test_a_directory_is_measured_and_copied_with_everything_in_it(directories, tmp_path):
    await directories.create("w", 8 * MB, 1.0)
    tree = Path((await directories.open("w", in_use=False)).path)
    (tree / "sub").mkdir()
    (tree / "sub" / "file").write_bytes(b"x" * 100_000)
    os.link(tree / "sub" / "file", tree / "again")
    (tree / "link").symlink_to("/etc/passwd")
    (tree / "script").write_text("#!/bin/sh\n")
    (tree / "script").chmod(0o750)
    os.mkfifo(tree / "pipe")
    used = (await directories.measure("w")).used_bytes
    assert 100_000 < used < 130_000
    await directories.copy("w", "x", 1.0)
    copy = tmp_path / "workspaces" / "x" / "tree"
    assert os.readlink(copy / "link") == "/etc/passwd"
    assert (copy / "script").stat().st_mode & 0o777 == 0o750
    assert (copy / "again").stat().st_ino == (copy / "sub" / "file").stat().st_ino
    assert (copy / "pipe").is_fifo()


@pytest.mark.promise("P20")
@pytest.mark.parametrize(("name", "depth"), [("d", 3000), ("d" * 200, 100)])
async def test_a_directory_of_any_depth_is_measured_and_removed(directories, tmp_path, name, depth):
    await directories.create("w", 8 * MB, 1.0)
    tree = Path((await directories.open("w", in_use=False)).path)
    empty = (await directories.measure("w")).allocated_bytes
    one = await asyncio.to_thread(_dig, tree, name, depth)
    (tree / "beside").mkdir()
    (tree / "beside" / "file").write_bytes(b"x" * 8192)
    measured = (await directories.measure("w")).allocated_bytes
    assert measured == empty + (depth + 1) * one + 8192
    await directories.remove("w")
    assert os.listdir(tmp_path / "workspaces") == []


def _dig(tree: Path, name: str, depth: int) -> int:
    """Create nested directories with a file in the last; return the size of one."""
    here = os.open(tree, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("last", os.O_CREAT, dir_fd=here))
    one = os.fstat(here).st_blocks * 512
    os.close(here)
    return one


async def test_a_directory_without_permissions_is_removed():
    """As the ordinary user who owns it; root ignores permissions."""
    with OrdinaryUser() as user:
        root = user.home / "workspaces"
        await WorkspaceDirectory(root, images=False).create("w", 8 * MB, 1.0)
        ended = await asyncio.to_thread(_shut_and_remove, user, root)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert os.listdir(root) == []


def _shut_and_remove(user: OrdinaryUser, root: Path) -> subprocess.CompletedProcess[str]:
    shut = root / "w" / "tree" / "shut" / "inner"
    shut.mkdir(parents=True)
    (shut / "file").write_text("x")
    shut.chmod(0)
    shut.parent.chmod(0o500)
    subprocess.run(["chown", "-R", str(user.id), root], check=True, timeout=FAR_TOO_LATE_S)
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from sandkasten_runtime.linux.storage.workspace_directory import WorkspaceDirectory\n"
        "asyncio.run(WorkspaceDirectory(Path(sys.argv[1])).remove('w'))"
    )
    return user.python("-c", code, str(root), timeout_s=FAR_TOO_LATE_S)
