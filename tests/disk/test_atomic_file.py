"""Files replaced as a whole, and the partial files that a killed writer leaves."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
import time

import pytest

from sandkasten.disk import atomic_file
from sandkasten.disk.atomic_file import (
    create_file,
    overwriting,
    remove_partial_files,
    replacing,
    write_file,
)


@pytest.mark.parametrize("durable", [True, False])
def test_written_file_has_its_content_and_mode_and_leaves_nothing_else(tmp_path, durable):
    path = tmp_path / "file"
    for data in (b"old", b"new"):
        write_file(path, data, mode=0o640, durable=durable)
        assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["file"]


def test_failed_write_keeps_the_old_content(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_file_with_the_longest_possible_name_can_be_replaced(tmp_path):
    path = tmp_path / ("n" * 255)
    write_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_first_creation_wins_and_a_later_one_writes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    assert create_file(path, b"first") is True
    assert create_file(path, b"second") is False

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(atomic_file, "_new_file", full)
        assert create_file(path, b"third") is False
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


KILLED = """
import os, sys
from pathlib import Path
from sandkasten.disk.atomic_file import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), 9)
"""


def test_partial_file_of_a_killed_process_is_removed(tmp_path):
    # Not collected yet: a writer that is a zombie is dead.
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "file")]) as killed:
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        assert len(os.listdir(tmp_path)) == 1
        remove_partial_files(tmp_path)
        assert os.listdir(tmp_path) == []


def test_partial_file_of_a_living_process_is_kept(tmp_path):
    (tmp_path / "other").write_bytes(b"")
    with replacing(tmp_path / "file") as file:
        remove_partial_files(tmp_path)
        file.write(b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert (tmp_path / "other").exists()


def test_partial_file_from_another_pid_namespace_is_removed_once_it_is_old(tmp_path):
    path = tmp_path / ".1-1-00000000.part"
    path.write_bytes(b"half")
    remove_partial_files(tmp_path)
    assert path.exists()
    os.utime(path, (0, time.time() - 61))
    remove_partial_files(tmp_path)
    assert not path.exists()


@pytest.fixture
def device(tmp_path):
    """A copy of the null device; never a real node, which a defect would replace."""
    if os.geteuid() != 0:
        pytest.skip("only root can make device nodes")
    path = tmp_path / "device"
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    return path


def _overwrite(path, data=b"new"):
    with overwriting(path) as file:
        file.write(data)


def test_overwritten_device_stays_a_device(tmp_path, device):
    _overwrite(device)
    assert stat.S_ISCHR(device.lstat().st_mode)
    assert os.listdir(tmp_path) == ["device"]


def test_overwritten_fifo_receives_the_content_and_stays(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()), daemon=True)
    reader.start()
    _overwrite(path, b"new" * 100_000)
    reader.join()
    assert received == [b"new" * 100_000]
    assert stat.S_ISFIFO(path.lstat().st_mode)


@pytest.mark.parametrize("exists", [True, False])
def test_overwriting_a_symbolic_link_writes_its_target(tmp_path, exists):
    (tmp_path / "below").mkdir()
    target = tmp_path / "below" / "file"
    if exists:
        target.write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("below/file")
    _overwrite(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path / "below") == ["file"]


def test_overwriting_a_symbolic_link_to_a_device_writes_to_the_device(tmp_path, device):
    link = tmp_path / "link"
    link.symlink_to(device)
    _overwrite(link)
    assert link.is_symlink()
    assert stat.S_ISCHR(device.lstat().st_mode)


def test_overwriting_a_directory_is_an_error(tmp_path):
    with pytest.raises(IsADirectoryError):
        _overwrite(tmp_path)


def test_failed_overwrite_leaves_a_fifo_untouched(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)

    def fail() -> None:
        with overwriting(path) as file:
            file.write(b"half")
            raise InterruptedError

    # Without a reader, opening the FIFO would block.
    with pytest.raises(InterruptedError):
        fail()
    assert stat.S_ISFIFO(path.lstat().st_mode)
