"""Workspace images: an ext4 file per sandbox, copied from a template of its size.

The kernel enforces the size (ENOSPC, exactly); the copy is some 130 KB however large the
workspace is, so it costs well under a millisecond, and so does reserving the rest. See
docs/decisions for why not a project quota. Raises QuotaExceeded for a full disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from sandkasten.disk import free_space
from sandkasten.disk.free_space import check_free
from sandkasten.disk.os_errors import no_space, translated
from sandkasten.errors import BackendUnavailable
from sandkasten_runtime.linux.storage import ext4
from sandkasten_runtime.linux.storage.mount_again import mounted_device
from sandkasten_runtime.linux.storage.tree_copy import copy_extents, share

if TYPE_CHECKING:
    from pathlib import Path

# 4 KiB blocks, because the loop device uses the same; no journal, because a crash loses the sandbox
# anyway; lazy tables and no discard, because the file is new and already empty.
_MKFS = (
    "-q", "-F", "-m", "0", "-b", "4096", "-O", "^has_journal,^resize_inode",
    "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0",
)  # fmt: skip
# Below this size ext4 has no room for its own tables.
MIN_BYTES = 4 * 1024 * 1024
# One inode per 16 KiB, as mkfs does by default, but never so few that a small project fails.
_BYTES_PER_INODE = 16384
_MIN_INODES = 4096
_ATTEMPT = "make a workspace"
# What the launcher makes in every workspace. In the template already, because the first directories
# of a file system cost as much as mounting it.
_DIRECTORIES = ("workspace", "home")


def make(target: Path, size: int, *, templates: Path, reserve: bool, min_free: int) -> bool:
    """Make a new image; return whether all of its space is reserved.

    At least `min_free` bytes of the disk stay free. The caller removes what a failure leaves.
    """
    with translated(_ATTEMPT, BackendUnavailable):
        # Also with `reserve`: a file system may have no way to reserve space.
        check_free(templates, min_free, _ATTEMPT)
        copy_template(template(templates, size), target)
        return reserve and reserve_space(target, min_free)


def make_copy(source: Path, target: Path, size: int, *, reserve: bool, min_free: int) -> bool:
    """Make an image with the content of another one, of at least `size` bytes. Return whether all
    of its space is reserved. At least `min_free` bytes of the disk stay free. The caller removes
    what a failure leaves.
    """
    with translated(_ATTEMPT, BackendUnavailable):
        src = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            check_free(target.parent, min_free, _ATTEMPT)
            dst = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                if not share(src, dst):
                    need = os.fstat(src).st_blocks * 512
                    check_free(target.parent, min_free + need, _ATTEMPT)
                    copy_extents(src, dst)
                    # Others took space at the same time.
                    check_free(target.parent, min_free, _ATTEMPT)
                grows = size > os.fstat(dst).st_size
            finally:
                os.close(dst)
        finally:
            os.close(src)
        if grows:
            ext4.grow(target, size, threading.Event())
        return reserve and reserve_space(target, min_free)


def flush(image: Path) -> None:
    """Write back to a mounted image what is in memory. Raise OSError if it is not mounted."""
    number = device_of(os.fspath(image))
    if number is None:
        raise FileNotFoundError(errno.ENODEV, "the image is not mounted")
    # No path of the sandbox is used: the device is mounted once more, and attached nowhere.
    with mounted_device(f"/dev/loop{number.partition(':')[2]}") as mount:
        # Released meanwhile, the device can have another image. Mounted, it keeps what it has.
        if device_of(os.fspath(image)) != number:
            raise FileNotFoundError(errno.ENODEV, "the image is no longer mounted")
        root = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(root) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(root)


def reserve_space(image: Path, min_free: int) -> bool:
    """Reserve all space of an image. Return False where the file system cannot do that."""
    file = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        return free_space.reserve(file, os.fstat(file).st_size, min_free, _ATTEMPT)
    finally:
        os.close(file)


def mkfs_program() -> str | None:
    return shutil.which("mkfs.ext4", path="/usr/sbin:/sbin:/usr/bin:/bin")


def template(directory: Path, size: int) -> Path:
    """Return the template for this size, made at first use; several processes may do so at once."""
    size = max(size, MIN_BYTES)
    path = directory / f"ext4-{size}-{'-'.join(_DIRECTORIES)}"
    if path.exists():
        return path
    program = mkfs_program()
    if program is None:
        raise BackendUnavailable(
            "mkfs.ext4 is not installed, so a workspace with a quota cannot be made",
            hint="apt-get install e2fsprogs",
        )
    inodes = max(_MIN_INODES, size // _BYTES_PER_INODE)
    handle, temporary = tempfile.mkstemp(dir=directory, prefix="making-")
    try:
        os.ftruncate(handle, size)
        with tempfile.TemporaryDirectory(dir=directory, prefix="making-") as content:
            for name in _DIRECTORIES:
                os.mkdir(os.path.join(content, name))
                os.chmod(os.path.join(content, name), 0o755)  # noqa: S103  (as the launcher does)
            subprocess.run(
                [program, *_MKFS, "-d", content, "-N", str(inodes), temporary],
                check=True,
                capture_output=True,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
                timeout=60,
            )
        os.rename(temporary, path)
    except (OSError, subprocess.SubprocessError) as exc:
        os.unlink(temporary)
        reason = (getattr(exc, "stderr", None) or str(exc).encode()).decode().strip()
        message = f"a workspace template of {size} bytes could not be made: {reason}"
        if os.strerror(errno.ENOSPC) in reason:
            raise no_space(message) from exc
        raise BackendUnavailable(
            message, hint="check the permissions of the data directory"
        ) from exc
    finally:
        os.close(handle)
    return path


def copy_template(source: Path, target: Path) -> None:
    """Copy only the data; holes stay holes. An OSError (ENOSPC…) leaves no target.

    Not synced, because a crash loses the sandbox anyway.
    """
    src = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        dst = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            copy_extents(src, dst)
        except OSError:
            os.unlink(target)
            raise
        finally:
            os.close(dst)
    finally:
        os.close(src)


# <linux/ext4.h>: refuse everything from now on, and write nothing back.
_EXT4_IOC_SHUTDOWN = 0x8004_587D
_NO_LOG_FLUSH = 2
# <linux/major.h>
_LOOP_MAJOR = 7


def pin_volume(pid: int, workspace_at: str) -> int | None:
    """Return a descriptor of the sandbox's volume, seen through its first process, if there is one.

    The path is ours: nothing inside can move a mount point or place something else there, even if
    the root is writable.
    """
    try:
        return os.open(
            f"/proc/{pid}/root{workspace_at}",
            os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
        )
    except OSError:
        return None


def abandon(volume: int) -> None:
    """Drop unwritten data: nothing will read it again."""
    # The same call on a host file system would shut that down.
    if os.major(os.fstat(volume).st_dev) != _LOOP_MAJOR:
        return
    with contextlib.suppress(OSError):
        fcntl.ioctl(volume, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))


# <linux/loop.h>: the device and inode of the file come first.
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_INFO_BYTES = 232
_LOOK_AGAIN_S = 0.002


def attached(path: str) -> bool:
    """Return whether a loop device holds this file: it is mounted, or just being unmounted."""
    return device_of(path) is not None


def device_of(path: str) -> str | None:
    """Return the number ("7:3") of the loop device that holds this file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    for name in os.listdir("/sys/block"):
        if not name.startswith("loop") or not os.path.exists(f"/sys/block/{name}/loop"):
            continue
        try:
            device = os.open(f"/dev/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            info = fcntl.ioctl(device, _LOOP_GET_STATUS64, bytes(_LOOP_INFO_BYTES))
            number = os.fstat(device).st_rdev
        except OSError:
            continue  # released meanwhile
        finally:
            os.close(device)
        if struct.unpack_from("=QQ", info) == (status.st_dev, status.st_ino):
            return f"{os.major(number)}:{os.minor(number)}"
    return None


def await_detached(path: str, timeout_s: float) -> bool:
    """Return True once everything is written to the file and it is no longer mounted."""
    deadline = time.monotonic() + timeout_s
    while attached(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_AGAIN_S)
    return True
