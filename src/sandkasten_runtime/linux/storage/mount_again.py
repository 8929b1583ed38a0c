"""A second mount of a file system that is mounted somewhere already, without any path to it.

For what the daemon reads of a sandbox from outside: no path of the sandbox is followed. Requires
root; raises OSError.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# The same numbers on every architecture: these calls are newer than the unified table.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC: Final = 1
_SET_STRING, _CREATE = 1, 6
# Read-only, no setuid, no devices, no execution.
_ATTRIBUTES: Final = 0x1 | 0x2 | 0x4 | 0x8


@contextmanager
def mounted_again(somewhere: int, kind: str = "ext4") -> Iterator[int]:
    """Return a descriptor of the root of the file system that the open file `somewhere` is on.

    It is a second mount of the same device that is attached nowhere: it has no path, no other
    process can see it, and it ends with its descriptor. Read-only. Requires root; raises OSError if
    it is not available. The files are live: processes that have it mounted continue to change them.
    """
    with mounted_device(_device_of(os.fstat(somewhere).st_dev), kind) as root:
        yield root


@contextmanager
def mounted_device(device: str, kind: str = "ext4") -> Iterator[int]:
    """Return a descriptor of the root of the ext4 on a device, as `mounted_again` does."""
    libc = ctypes.CDLL(None, use_errno=True)
    context = _call(libc, _FSOPEN, kind.encode(), _CLOEXEC)
    try:
        _call(libc, _FSCONFIG, context, _SET_STRING, b"source", device.encode(), 0)
        _call(libc, _FSCONFIG, context, _CREATE, None, None, 0)
        root = _call(libc, _FSMOUNT, context, _CLOEXEC, _ATTRIBUTES)
    finally:
        os.close(context)
    try:
        yield root
    finally:
        os.close(root)


def _device_of(number: int) -> str:
    """Return the node of a block device. Raise FileNotFoundError if there is none, as for a
    tmpfs.
    """
    with open(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/uevent") as file:
        for line in file:
            if line.startswith("DEVNAME="):
                return "/dev/" + line.removeprefix("DEVNAME=").strip()
    raise FileNotFoundError(f"no device node is known for {number}")


def _call(libc: ctypes.CDLL, number: int, *arguments: int | bytes | None) -> int:
    passed = [
        ctypes.c_long(argument) if isinstance(argument, int) else ctypes.c_char_p(argument)
        for argument in arguments
    ]
    answer = int(libc.syscall(ctypes.c_long(number), *passed))
    if answer < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
    return answer
