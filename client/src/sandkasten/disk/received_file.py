"""Read an open file that an untrusted program has passed, without ever waiting for that program.

The sender chose the descriptor, so it can be anything: a FIFO, a directory, a device, a file that
was opened for writing, or one whose reads are answered by a program of the sender (FUSE). `accept`
asks only questions that the kernel answers by itself, and refuses everything but a readable regular
file of a file system on which this holds for reads too. The content is the sender's in any case,
and may grow or shrink while it is read; nothing is mapped, so a shorter file is a shorter read.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
import threading
from contextlib import suppress
from functools import cache

from sandkasten.disk.free_space import file_system_of

# ext4, xfs, btrfs, f2fs, tmpfs: no user can mount one of them over their own program. Overlay
# is missing because its layers can be anything.
_FILE_SYSTEMS = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994})
# Copying this much from memory takes so little time that the event loop may do it.
MOST_AT_ONCE = 1 << 20
# Between two steps, a thread checks whether the file was closed.
_STEP_BYTES = 8 << 20
_F_GET_SEALS = 1034
_AT_EMPTY_PATH, _AT_STATX_DONT_SYNC = 0x1000, 0x4000
_STATX_TYPE_AND_INODE = 0x1 | 0x100
_STATX_BYTES = 256
_STATX_MODE, _STATX_INODE, _STATX_DEVICE = 28, 32, 136
_NO_SUPPORT = frozenset({errno.EOPNOTSUPP, errno.EINVAL})


class ReceivedFile:
    """A file that `accept` has accepted. One thread reads; any thread may close it meanwhile."""

    __slots__ = ("_closed", "_descriptor", "_lock", "_reading")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._reading = False
        self._closed = False

    def read_cached(self, place: memoryview, offset: int) -> int:
        """Read what is in memory, at most `MOST_AT_ONCE`, without waiting for the disk.

        Return 0 if nothing is, or at the end of the file. Raise OSError.
        """
        try:
            return os.preadv(self._descriptor, [place[:MOST_AT_ONCE]], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError as exc:
            if exc.errno in _NO_SUPPORT:
                return 0
            raise

    def read(self, place: memoryview, offset: int) -> int:
        """Fill `place`, waiting for the disk; less at the end of the file. For a worker thread.

        Stops early if the file is closed meanwhile. Raise OSError.
        """
        with self._lock:
            if self._closed:
                return 0
            self._reading = True
        filled = 0
        try:
            while filled < len(place) and not self._closed:
                part = place[filled : filled + _STEP_BYTES]
                count = os.preadv(self._descriptor, [part], offset + filled)
                if not count:
                    break
                filled += count
        finally:
            with self._lock:
                self._reading = False
                if self._closed:
                    os.close(self._descriptor)
        return filled

    def close(self) -> None:
        """Close the file, at the latest when the step that a thread reads has ended."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._reading:
                os.close(self._descriptor)


def accept(descriptor: int, device: int, inode: int) -> ReceivedFile | None:
    """Return the file if it can be read safely and is the one that was announced.

    Owns the descriptor if it returns a file. A refused one is the caller's, and closing it may
    block. Never blocks itself.
    """
    return ReceivedFile(descriptor) if _is_readable(descriptor, device, inode) else None


def _is_readable(descriptor: int, device: int, inode: int) -> bool:
    try:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        if flags & (os.O_PATH | os.O_DIRECT) or flags & os.O_ACCMODE == os.O_WRONLY:
            return False
        if _regular_identity(descriptor) != (device, inode):
            return False
        # statfs itself would ask the program behind a FUSE mount, so this comes before it.
        if not _answers_at_once(descriptor):
            return False
    except OSError:
        return False
    return file_system_of(descriptor) in _FILE_SYSTEMS


def _regular_identity(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of a regular file, from what the kernel knows without asking."""
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    flags = _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC
    if _statx()(descriptor, b"", flags, _STATX_TYPE_AND_INODE, buffer) != 0:
        return None
    (mode,) = struct.unpack_from("=H", buffer, _STATX_MODE)
    if not stat.S_ISREG(mode):
        return None
    (inode,) = struct.unpack_from("=Q", buffer, _STATX_INODE)
    return os.makedev(*struct.unpack_from("=II", buffer, _STATX_DEVICE)), inode


def _answers_at_once(descriptor: int) -> bool:
    """Return True if reads can be made not to wait; FUSE and network file systems raise OSError.

    tmpfs may refuse such reads too, but there the seals of a file can be read. Only files in memory
    have seals.
    """
    with suppress(OSError):
        fcntl.fcntl(descriptor, _F_GET_SEALS)
        return True
    # The data is not in memory yet: the kernel answered by itself.
    with suppress(BlockingIOError):
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    return True


@cache
def _statx() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).statx
    function.argtypes = [
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_char_p,
    ]
    return function
