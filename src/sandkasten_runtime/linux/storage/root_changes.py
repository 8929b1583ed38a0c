"""The changes of a sandbox with a writable root, read from the host.

The changes are on the sandbox's own volume, which has no path on the host; the volume is mounted
once more while they are read. Raises UnsupportedByBackend if there is nothing to read or no access
to it.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sandkasten.errors import SandboxLost, UnsupportedByBackend
from sandkasten.model.sandbox.cell_spec import RootChanges
from sandkasten_runtime.linux import processes
from sandkasten_runtime.linux.confinement import id_ranges
from sandkasten_runtime.linux.state_layout import Layout, read_pid, read_state
from sandkasten_runtime.linux.storage import workspace_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandkasten.model.ids import SandboxId

# The layout of the launcher.
_UPPER = "over/upper"
# The same numbers on every architecture: these calls are newer than the unified table.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC: Final = 1
_SET_STRING, _CREATE = 1, 6
# Read-only, no setuid, no devices, no execution.
_ATTRIBUTES: Final = 0x1 | 0x2 | 0x4 | 0x8


@contextmanager
def changes_of(layout: Layout, sandbox_id: SandboxId) -> Iterator[RootChanges]:
    """Yield the changes. Blocks briefly."""
    cell = layout.cell(sandbox_id)
    state, identity = read_state(cell), read_pid(cell)
    pinned = processes.pin(*identity) if identity else None
    if state is None or pinned is None:
        raise SandboxLost(f"sandbox {sandbox_id} is gone", hint="create a new one")
    try:
        volume = workspace_image.pin_volume(pinned.pid, state.workspace_at)
    finally:
        pinned.close()
    if volume is None or state.slot is None or state.volume is not None:
        raise _nothing(sandbox_id)
    try:
        with mounted_again(volume) as root:
            upper = os.open(_UPPER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
            try:
                yield RootChanges(f"/proc/self/fd/{upper}/.", id_ranges.base_of(state.slot))
            finally:
                os.close(upper)
    except FileNotFoundError as exc:
        raise _nothing(sandbox_id) from exc
    finally:
        os.close(volume)


def _nothing(sandbox_id: SandboxId) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"the changes of sandbox {sandbox_id} to its root cannot be read",
        hint="use the dev profile on a machine with loop devices (run sandkasten doctor)",
    )


@contextmanager
def mounted_again(somewhere: int, kind: str = "ext4") -> Iterator[int]:
    """Return a descriptor of the root of the file system that the open file `somewhere` is on.

    It is a second mount of the same device that is attached nowhere: it has no path, no other
    process can see it, and it ends with its descriptor. Read-only. Requires root; raises OSError if
    it is not available. The files are live: processes that have it mounted continue to change them.
    """
    device = _device_of(os.fstat(somewhere).st_dev)
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
