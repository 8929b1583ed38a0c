"""The changes of a sandbox with a writable root, read from the host.

The changes are on the sandbox's own volume, which has no path on the host; the volume is mounted
once more while they are read. Raises UnsupportedByBackend if there is nothing to read or no access
to it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sandkasten.errors import SandboxLost, UnsupportedByBackend
from sandkasten.model.sandbox.cell_spec import RootChanges
from sandkasten_runtime.linux import processes
from sandkasten_runtime.linux.confinement import id_ranges
from sandkasten_runtime.linux.state_layout import Layout, read_pid, read_state
from sandkasten_runtime.linux.storage import workspace_image
from sandkasten_runtime.linux.storage.mount_again import mounted_again

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandkasten.model.ids import SandboxId

# The layout of the launcher.
_UPPER = "over/upper"


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
