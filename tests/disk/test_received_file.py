"""Descriptors from an untrusted program: what is read, what is refused, and that none is kept."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
import threading
import uuid
from pathlib import Path

import pytest

from sandkasten.disk import received_file
from sandkasten.disk.free_space import file_system_of
from sandkasten.disk.received_file import MOST_AT_ONCE, ReceivedFile, accept
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P96")

OVERLAY = 0x794C7630


def refused(descriptor: int) -> bool:
    found = looked_at(descriptor)
    os.close(descriptor)
    return found is None


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def looked_at(descriptor: int) -> ReceivedFile | None:
    """Look at a descriptor as the file that it is."""
    found = os.fstat(descriptor)
    return accept(descriptor, found.st_dev, found.st_ino)


def taken(descriptor: int) -> ReceivedFile:
    file = looked_at(descriptor)
    assert file is not None
    return file


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    """A directory of a file system that can be read; containers have an overlay for a disk."""
    if request.param == "disk":
        descriptor = os.open(tmp_path, os.O_RDONLY)
        found = file_system_of(descriptor)
        os.close(descriptor)
        if found == OVERLAY:
            pytest.skip("there is no disk but an overlay")
        yield tmp_path
        return
    path = Path("/dev/shm") / f"sandkasten-{uuid.uuid4().hex}"
    path.mkdir()
    yield path
    for one in path.iterdir():
        one.unlink()
    path.rmdir()


def opened(path: Path, flags: int = os.O_RDONLY) -> int:
    return os.open(path, flags | os.O_CLOEXEC)


def test_regular_file_is_read_in_memory_or_from_disk(folder):
    content = os.urandom(3 * MOST_AT_ONCE + 17)
    (folder / "file").write_bytes(content)
    file = taken(opened(folder / "file"))
    place = memoryview(bytearray(len(content) + 100))
    assert file.read(place, 0) == len(content)
    assert place[: len(content)] == content
    assert file.read(place, len(content) - 5) == 5
    cached = file.read_cached(place, 0)
    assert cached <= MOST_AT_ONCE
    assert place[:cached] == content[:cached]
    file.close()
    file.close()


def test_file_that_shrinks_is_a_shorter_read_and_one_that_grows_is_not_longer(folder):
    path = folder / "file"
    path.write_bytes(b"x" * 5000)
    file = taken(opened(path))
    os.truncate(path, 10)
    assert file.read(memoryview(bytearray(5000)), 0) == 10
    assert file.read_cached(memoryview(bytearray(5000)), 100) == 0
    os.truncate(path, 1 << 40)
    assert file.read(memoryview(bytearray(5000)), 0) == 5000
    file.close()


def unreadable(kind: str, folder: Path) -> int:
    path = folder / "thing"
    if kind == "fifo":
        os.mkfifo(path)
        return opened(path, os.O_RDONLY | os.O_NONBLOCK)
    if kind == "directory":
        return opened(folder)
    if kind == "socket":
        one, other = socket.socketpair()
        other.close()
        return one.detach()
    if kind == "pipe":
        end, other_end = os.pipe()
        os.close(other_end)
        return end
    if kind in ("/dev/zero", "/dev/null", "/proc/self/status", "/sys/kernel/notes"):
        return opened(Path(kind))
    if kind == "event":
        return os.eventfd(1)
    if kind == "epoll":
        with select.epoll() as polled:
            return os.dup(polled.fileno())
    path.write_bytes(b"content")
    flags = {"path": os.O_PATH, "write only": os.O_WRONLY, "direct": os.O_RDONLY | os.O_DIRECT}
    return opened(path, flags[kind])


@pytest.mark.parametrize(
    "kind",
    [
        "fifo", "directory", "socket", "pipe", "/dev/zero", "/dev/null", "/proc/self/status",
        "/sys/kernel/notes", "event", "epoll", "path", "write only", "direct",
    ],
)  # fmt: skip
def test_anything_but_a_readable_regular_file_is_refused(kind, tmp_path):
    assert refused(unreadable(kind, tmp_path))


def test_another_file_than_the_announced_one_is_refused(folder):
    for name in ("one", "other"):
        (folder / name).write_bytes(b"content")
    announced = os.stat(folder / "one")
    descriptor = opened(folder / "other")
    assert accept(descriptor, announced.st_dev, announced.st_ino) is None
    assert accept(descriptor, announced.st_dev, 2**64 - 1) is None
    os.close(descriptor)


def test_file_of_another_file_system_is_refused(folder, monkeypatch):
    """An overlay, for one, may be over anything."""
    (folder / "file").write_bytes(b"content")
    monkeypatch.setattr(received_file, "file_system_of", lambda _: OVERLAY)
    assert refused(opened(folder / "file"))


def test_sparse_file_costs_what_is_read_of_it(folder):
    path = folder / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    file = taken(opened(path))
    place = memoryview(bytearray(100))
    assert file.read(place, (1 << 40) - 50) == 50
    assert bytes(place[:50]) == bytes(50)
    file.close()


def test_file_closed_while_a_thread_reads_is_closed_when_it_has_read(folder, monkeypatch):
    path = folder / "file"
    path.write_bytes(bytes(20 << 20))
    descriptor = opened(path)
    file = taken(descriptor)
    reading, closed = threading.Event(), threading.Event()
    real = os.preadv

    def slow(*arguments):
        reading.set()
        assert closed.wait(PATIENCE_S)
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", slow)
    read: list[int] = []
    thread = threading.Thread(
        target=lambda: read.append(file.read(memoryview(bytearray(20 << 20)), 0))
    )
    thread.start()
    assert reading.wait(PATIENCE_S)
    file.close()
    assert is_open(descriptor)
    closed.set()
    thread.join(PATIENCE_S)
    # One step, and not the rest.
    assert 0 < read[0] < 20 << 20
    assert not is_open(descriptor)
    assert file.read(memoryview(bytearray(1)), 0) == 0


class SilentFuse:
    """A FUSE file system that answers until a file is open, and then nothing more."""

    IN, OUT = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
    INIT, LOOKUP, OPEN = 26, 1, 14
    ATTRIBUTES = struct.pack(
        "=6Q10I", 2, 1 << 20, 8, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0
    )

    def __init__(self, target: Path) -> None:
        self.target = target
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0".encode()
        self.libc = ctypes.CDLL(None, use_errno=True)
        if self.libc.mount(b"silent", os.fsencode(target), b"fuse", 0, options) != 0:
            os.close(self.device)
            raise OSError(ctypes.get_errno(), "mount")
        self.asked: list[int] = []
        self.silent = False
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self.device, 1 << 20)
            except OSError as exc:
                if exc.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return
            _, code, unique, *_ = self.IN.unpack_from(request)
            self.asked.append(code)
            answers = {
                self.INIT: struct.pack("=4I2H2I32x", 7, 31, 0, 0, 0, 0, 4096, 1),
                self.LOOKUP: struct.pack("=4Q2I", 2, 0, 0, 0, 0, 0) + self.ATTRIBUTES,
                self.OPEN: bytes(16),
            }
            body = answers.get(code)
            if body is None and self.silent:
                continue
            if code == self.OPEN:
                self.silent = True
            error = 0 if body is not None else -errno.ENOSYS
            body = body or b""
            os.write(self.device, self.OUT.pack(self.OUT.size + len(body), error, unique) + body)

    def end(self) -> None:
        self.libc.umount2(os.fsencode(self.target), 2)
        os.close(self.device)


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs FUSE")
def test_file_whose_program_never_answers_is_refused_without_asking_it(tmp_path):
    """A read, a stat, a statfs and even a close of it would block for ever."""
    fuse = SilentFuse(tmp_path)
    try:
        descriptor = opened(tmp_path / "file")
        asked = len(fuse.asked)
        results: list[ReceivedFile | None] = []
        thread = threading.Thread(
            target=lambda: results.append(accept(descriptor, fuse_device(descriptor), 2)),
            daemon=True,
        )
        thread.start()
        thread.join(PATIENCE_S)
        assert results == [None]
        assert len(fuse.asked) == asked
        # Not `os.close`, which raises what the file system answers.
        span = (descriptor, descriptor + 1)
        threading.Thread(target=os.closerange, args=span, daemon=True).start()
    finally:
        fuse.end()


def fuse_device(descriptor: int) -> int:
    """Return the device of a descriptor without a stat, which would block."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="utf-8") as lines:
        wanted = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        major, minor = next(
            line.split()[2].split(":") for line in lines if line.split()[0] == wanted
        )
    return os.makedev(int(major), int(minor))
