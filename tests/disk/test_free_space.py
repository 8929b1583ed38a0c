"""Space is reserved for a file in advance, or the request is refused with what is missing."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from contextlib import suppress

import pytest

from sandkasten.disk import free_space
from sandkasten.disk.free_space import check_free, free_bytes, is_reservable, reserve
from sandkasten.errors import QuotaExceeded

MB = 1024 * 1024


def test_a_reserved_file_has_all_of_its_blocks_and_keeps_its_content(disk_path):
    with open(disk_path / "file", "w+b") as file:
        file.write(b"content")
        file.truncate(8 * MB)
        file.flush()
        assert os.fstat(file.fileno()).st_blocks * 512 < MB
        for size in (8 * MB, 12 * MB, 12 * MB):
            assert reserve(file.fileno(), size, 0, "try") is True
            found = os.fstat(file.fileno())
            assert (found.st_size, found.st_blocks * 512 >= size) == (size, True)
        file.seek(0)
        assert file.read(7) == b"content"
    assert is_reservable(disk_path)


def test_space_that_must_stay_free_is_not_reserved(disk_path):
    free = free_bytes(disk_path)
    with open(disk_path / "file", "w+b") as file:
        with pytest.raises(QuotaExceeded, match="kept free") as caught:
            reserve(file.fileno(), 2 * MB, free, "make a workspace")
        assert caught.value.details == {"quota": "disk"}
        assert "workspace_mb" in caught.value.hint
        assert os.fstat(file.fileno()).st_size == 0
    check_free(disk_path, free // 2, "write")
    with pytest.raises(QuotaExceeded, match="could not write"):
        check_free(disk_path, free * 2, "write")


def test_a_file_that_has_its_blocks_needs_no_free_space(disk_path):
    with open(disk_path / "file", "w+b") as file:
        assert reserve(file.fileno(), MB, 0, "try") is True
        assert reserve(file.fileno(), MB, 1 << 60, "try") is True


def test_blocks_that_another_file_has_too_need_free_space(disk_path, monkeypatch):
    # ext4 shares none: what stands for them here are blocks that were not written yet.
    monkeypatch.setattr(free_space, "_SHARED", 0x800)
    with open(disk_path / "file", "w+b") as file:
        reserve(file.fileno(), 2 * MB, 0, "try")
        for number in range(0, 2 * MB // 4096, 2):
            file.seek(number * 4096)
            file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
        shared = free_space._shared_bytes(file.fileno())
        # More extents than one call returns, and those at the end are among them.
        assert shared == MB
        free = free_bytes(disk_path)
        with pytest.raises(QuotaExceeded) as caught:
            reserve(file.fileno(), 2 * MB, free - MB // 2, "try")
        assert caught.value.details == {"quota": "disk"}


def test_memory_is_not_reserved():
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(MB)
        assert reserve(file.fileno(), MB, 0, "try") is False
        assert os.fstat(file.fileno()).st_blocks == 0


def test_a_file_system_that_cannot_reserve_is_recognised(disk_path, monkeypatch):
    monkeypatch.setattr(free_space, "_allocate", lambda *_: errno.EOPNOTSUPP)
    with open(disk_path / "file", "w+b") as file:
        assert reserve(file.fileno(), MB, 0, "try") is False
    monkeypatch.setattr(free_space, "_allocate", lambda *_: errno.EIO)
    with open(disk_path / "file", "w+b") as file, pytest.raises(OSError, match="error"):
        reserve(file.fileno(), MB, 0, "try")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
def test_a_disk_without_a_free_byte_is_exhausted(disk_path):
    image, place = disk_path / "image", disk_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(32 * MB)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    try:
        assert not free_space.is_exhausted(place)
        with suppress(OSError), open(place / "fill", "wb", 0) as fill:
            while fill.write(bytes(4096)):
                pass
        assert free_space.is_exhausted(place)
    finally:
        subprocess.run(["umount", place], check=True)
