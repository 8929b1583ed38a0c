"""Workspace images: created once per size, copied sparsely, nothing left on failure."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from sandkasten.disk.free_space import free_bytes
from sandkasten.errors import BackendUnavailable, QuotaExceeded
from sandkasten_runtime.linux.storage import tree_copy, workspace_image


def test_a_file_system_template_is_created_once(tmp_path: Path) -> None:
    first = workspace_image.template(tmp_path, 64 << 20)
    again = workspace_image.template(tmp_path, 64 << 20)
    assert first == again
    assert [p.name for p in tmp_path.iterdir()] == [first.name]
    assert first.stat().st_size == 64 << 20


def test_a_copy_has_the_same_bytes_and_stays_sparse(tmp_path: Path) -> None:
    source = workspace_image.template(tmp_path, 64 << 20)
    target = tmp_path / "copy"
    workspace_image.copy_template(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks * 512 < 2 << 20


def test_an_existing_target_is_not_overwritten(tmp_path: Path) -> None:
    source = workspace_image.template(tmp_path, 8 << 20)
    target = tmp_path / "copy"
    target.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        workspace_image.copy_template(source, target)
    assert target.read_bytes() == b"mine"


def test_without_mkfs_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_image, "mkfs_program", lambda: None)
    with pytest.raises(BackendUnavailable) as caught:
        workspace_image.template(tmp_path, 8 << 20)
    assert caught.value.hint == "apt-get install e2fsprogs"
    assert os.listdir(tmp_path) == []


def test_a_failing_mkfs_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_image, "mkfs_program", lambda: "/bin/false")
    with pytest.raises(BackendUnavailable):
        workspace_image.template(tmp_path, 8 << 20)
    assert os.listdir(tmp_path) == []


def test_only_a_loop_device_is_ever_shut_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(fcntl, "ioctl", lambda fd, *_: asked.append(fd))
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        workspace_image.abandon(fd)
    finally:
        os.close(fd)
    assert asked == []


def test_space_is_checked_where_none_can_be_reserved(tmp_path: Path) -> None:
    # tmpfs cannot reserve space for a file.
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as place,
        pytest.raises(QuotaExceeded, match="of the host's disk are free"),
    ):
        workspace_image.make(
            Path(place) / "volume",
            8 << 20,
            templates=Path(place),
            reserve=True,
            min_free=1 << 60,
        )


def test_a_copy_that_shares_no_blocks_keeps_space_free(disk_path: Path) -> None:
    source = disk_path / "source"
    source.write_bytes(bytes(16 << 20))
    os.sync()
    if tree_copy.can_share(disk_path):
        pytest.skip("this file system shares blocks")
    with pytest.raises(QuotaExceeded) as caught:
        workspace_image.make_copy(
            source,
            disk_path / "copy",
            16 << 20,
            reserve=False,
            min_free=free_bytes(disk_path) - (8 << 20),
        )
    assert caught.value.details == {"quota": "disk"}
    assert (disk_path / "copy").stat().st_blocks == 0


def test_a_device_that_got_another_image_is_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = iter(["7:3", None])
    monkeypatch.setattr(workspace_image, "device_of", lambda _: next(devices))
    monkeypatch.setattr(
        workspace_image,
        "mounted_device",
        lambda _: nullcontext(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)),
    )
    with pytest.raises(FileNotFoundError) as caught:
        workspace_image.flush(tmp_path / "image")
    assert caught.value.errno == errno.ENODEV
