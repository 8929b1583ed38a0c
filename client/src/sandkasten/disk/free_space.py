"""Free space on a disk: how much there is, and taking it in advance for a file.

Raises QuotaExceeded if there is not enough, otherwise OSError.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import tempfile
from functools import cache
from typing import TYPE_CHECKING, Final

from sandkasten.errors import QuotaExceeded

if TYPE_CHECKING:
    from pathlib import Path

_MB: Final = 1024 * 1024
# ext4 keeps 2 % or this many bytes for its own tables, and counts them as free.
_KEPT: Final = 16 * _MB
# <linux/magic.h>: tmpfs takes memory instead, and btrfs and ZFS write to other blocks than those
# that a file has already.
_NOT_RESERVABLE: Final = frozenset({0x0102_1994, 0x9123_683E, 0x2FC1_2FC1})
_STATFS_BYTES: Final = 256
# <linux/falloc.h>
_UNSHARE_RANGE: Final = 0x40
# <linux/fiemap.h>: struct fiemap and struct fiemap_extent.
_FIEMAP: Final = 0xC020_660B
_HEAD: Final = struct.Struct("=QQLLLL")
_EXTENT: Final = struct.Struct("=QQQ16xL12x")
_EXTENTS: Final = 256
_LAST: Final = 0x1
_SHARED: Final = 0x2000
_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


def free_bytes(path: Path | int) -> int:
    """Return what an ordinary user could still write to the disk of `path`."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def is_exhausted(path: Path) -> bool:
    """Return whether nothing is left, not even for root, as which the kernel writes images."""
    disk = os.statvfs(path)
    reserved = min(disk.f_blocks * disk.f_frsize // 50, _KEPT)
    return disk.f_bfree * disk.f_frsize < reserved + _MB


def check_free(path: Path | int, min_free: int, attempt: str) -> None:
    """Raise QuotaExceeded if less than `min_free` bytes are free."""
    free = free_bytes(path)
    if free < min_free:
        raise QuotaExceeded(
            f"could not {attempt}: {_mb(free)} of the host's disk are free, "
            f"and at least {_mb(min_free)} must be",
            hint="free space below the data directory (disk.min_free_mb says what is kept free)",
            quota="disk",
        )


def reserve(file: int, size: int, min_free: int, attempt: str) -> bool:
    """Give an open file all blocks up to `size`, so that no write to it can fail for lack of space.

    It grows to this size. At least `min_free` bytes of the disk stay free. Return False where
    blocks cannot be reserved; then nothing was changed.
    """
    if file_system_of(file) in _NOT_RESERVABLE:
        return False
    missing = max(0, size - os.fstat(file).st_blocks * 512) + _shared_bytes(file)
    free = free_bytes(file)
    if missing and free < missing + min_free:
        raise _too_little(attempt, missing, free, min_free)
    # XFS shares the blocks of a copy until one of them is written; ext4 does not know the flag.
    number = _allocate(file, _UNSHARE_RANGE, size)
    if number in _UNSUPPORTED:
        number = _allocate(file, 0, size)
    if number in _UNSUPPORTED:
        return False
    if number in (errno.ENOSPC, errno.EDQUOT):
        raise _too_little(attempt, missing, free, min_free)
    if number != 0:
        raise OSError(number, os.strerror(number))
    if missing and (available := free_bytes(file)) < min_free:
        # Others took space at the same time.
        raise _too_little(attempt, missing, available, min_free)
    return True


def _shared_bytes(file: int) -> int:
    """Return how many bytes are in blocks that another file has, too."""
    shared = at = 0
    while True:
        request = bytearray(_HEAD.size + _EXTENTS * _EXTENT.size)
        _HEAD.pack_into(request, 0, at, (1 << 63) - at, 0, 0, _EXTENTS, 0)
        try:
            fcntl.ioctl(file, _FIEMAP, request)
        except OSError:
            return shared  # a file system without it shares nothing
        count = _HEAD.unpack_from(request)[3]
        flags = _LAST
        for index in range(count):
            place = _HEAD.size + index * _EXTENT.size
            start, _, length, flags = _EXTENT.unpack_from(request, place)
            at = start + length
            shared += length if flags & _SHARED else 0
        if flags & _LAST:
            return shared


def is_reservable(directory: Path) -> bool:
    """Try whether the file system of a directory can reserve space for a file."""
    with tempfile.TemporaryFile(dir=directory) as file:
        return reserve(file.fileno(), 4096, 0, "reserve space")


def _too_little(attempt: str, need: int, free: int, min_free: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"could not {attempt}: it needs {_mb(need)} of the host's disk, {_mb(free)} are free, "
        f"and {_mb(min_free)} are kept free",
        hint="free space below the data directory, ask for a smaller workspace (workspace_mb), or "
        "let workspaces share the free space (disk.reserve: none)",
        quota="disk",
    )


def _allocate(file: int, mode: int, size: int) -> int:
    """Return 0 or the error number.

    Not os.posix_fallocate, which writes to every block where the file system cannot reserve.
    """
    return 0 if _libc().fallocate(file, mode, 0, size) == 0 else ctypes.get_errno()


def _mb(count: int) -> str:
    return f"{count // _MB} MB"


def file_system_of(file: int) -> int:
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc().fstatfs(file, buffer) != 0:
        return 0
    return int(struct.unpack_from("l", buffer.raw)[0])


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    libc.fstatfs.argtypes = [ctypes.c_int, ctypes.c_char_p]
    return libc
