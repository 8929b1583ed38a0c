"""End a local sandbox and remove everything of it. Blocking.

Works from what is on disk, so it does not matter which process made the sandbox or how far it got.
Raises BackendUnavailable if a process does not die or a file cannot be removed; the next attempt
continues.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from sandkasten.disk.process_identity import boot_id
from sandkasten.errors import BackendUnavailable
from sandkasten.model.sandbox.limits import Limits
from sandkasten_runtime.linux import egress, processes
from sandkasten_runtime.linux.cgroup import cgroups, freezer
from sandkasten_runtime.linux.confinement import id_ranges
from sandkasten_runtime.linux.state_layout import CellState, Layout, read_pid, read_state
from sandkasten_runtime.linux.storage import workspace_image

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandkasten.model.ids import SandboxId

# Killing takes about a millisecond; a workspace with much unwritten data is flushed first.
_DEATH_DEADLINE_S = 30.0
_to_close: SimpleQueue[tuple[int, Callable[[int], None]]] = SimpleQueue()
_closing_lock = threading.Lock()
_closing_process = 0
"""The process that owns the thread: a fork does not inherit it."""


def remove(layout: Layout, sandbox_id: SandboxId) -> None:
    """End the sandbox and remove everything. Twice is fine; so is a half-made cell. Blocking."""
    cell = layout.cell(sandbox_id)
    if not cell.exists():
        _release(sandbox_id)
        return
    state = read_state(cell) or _guess(sandbox_id)
    _end(cell, sandbox_id, state)
    # It ends with its sandbox by itself, unless it hangs; and only root has a cgroup that kills it.
    egress.cut(cell)
    if state.volume is not None and not _lived_in(layout, sandbox_id, state.volume):
        workspace_image.await_detached(state.volume, _DEATH_DEADLINE_S)
    with contextlib.suppress(OSError):
        cgroups.remove(_group(state))
    if not _clear(cell):
        raise BackendUnavailable(
            f"the files of sandbox {sandbox_id} could not be removed",
            hint=f"look at {cell}; the next sweep tries again",
        )
    if state.slot is not None:
        # Last: until now the id range could still have been in use.
        id_ranges.release(id_ranges.HOST_DIRECTORY, state.slot, sandbox_id)


def _release(sandbox_id: SandboxId) -> None:
    """Release the id range of a sandbox whose remover was killed just before it did so."""
    if os.geteuid() == 0:
        slot = id_ranges.slot_of(id_ranges.HOST_DIRECTORY, sandbox_id)
        if slot is not None:
            id_ranges.release(id_ranges.HOST_DIRECTORY, slot, sandbox_id)


def _clear(cell: Path) -> bool:
    """Remove our own few files by name, which is fastest, and then whatever else is there."""
    for name in ("socket", "pid", "volume", "changes", "state"):
        with contextlib.suppress(OSError):
            os.unlink(cell / name)
    try:
        os.rmdir(cell)
    except FileNotFoundError:
        return True
    except OSError:
        shutil.rmtree(cell, ignore_errors=True)
        return not cell.exists()
    return True


def _guess(sandbox_id: SandboxId) -> CellState:
    """Derive the state only from the id: it was damaged or never written."""
    root = os.geteuid() == 0
    if not root:
        return CellState(boot_id(), None, (), None)
    planned = cgroups.plan(cgroups.detect(), sandbox_id, Limits())
    everywhere = cgroups.everywhere(Path("/proc/self/mountinfo").read_text(), sandbox_id)
    slot = id_ranges.slot_of(id_ranges.HOST_DIRECTORY, sandbox_id)
    return CellState(boot_id(), slot, everywhere, planned.v2_directory)


def _group(state: CellState) -> cgroups.CgroupPlan:
    return cgroups.CgroupPlan(state.cgroups, v2_directory=state.v2_directory)


def _end(cell: Path, sandbox_id: SandboxId, state: CellState) -> None:
    if state.boot_id != boot_id():
        return  # the machine was restarted: nothing of it can be alive
    group = _group(state)
    identity = read_pid(cell)
    pinned = processes.pin(*identity) if identity else None
    volume = mounts = None
    try:
        if pinned is not None:
            # Before the kill, because this path disappears with the first process. Holding the
            # mounts means that its death need not wait for some thirty unmounts.
            volume = workspace_image.pin_volume(pinned.pid, state.workspace_at)
            mounts = processes.hold_mounts(pinned.pid)
        # Both: the group also contains an interrupted launcher, and the pid works without cgroups.
        killed = cgroups.kill(group)
        if pinned is not None:
            pinned.kill()
        # After the kill, so that nothing inside runs again.
        freezer.thaw_dying(state.cgroups)
        if pinned is None:
            if killed:
                _await_empty(group)
            return
        if not pinned.wait(_DEATH_DEADLINE_S):
            raise BackendUnavailable(
                f"sandbox {sandbox_id} (pid {pinned.pid}) does not die",
                hint="a process in uninterruptible sleep holds it; the next sweep tries again",
            )
    finally:
        if state.volume is None:
            # No process will read what it wrote, so it is not written back.
            close_later(volume, after=workspace_image.abandon)
            close_later(mounts)
        else:
            # The next user must find the workspace unmounted, so unmount it here.
            for descriptor in (volume, mounts):
                if descriptor is not None:
                    os.close(descriptor)
        if pinned is not None:
            pinned.close()


def _lived_in(layout: Layout, but: SandboxId, volume: str) -> bool:
    """Return whether a sandbox of any backend has the same workspace and so keeps it mounted."""
    for relative in layout.relatives():
        for other in relative.cells():
            if other != but and alive(relative, other):
                state = read_state(relative.cell(other))
                if state is not None and state.volume == volume:
                    return True
    return False


def _await_empty(group: cgroups.CgroupPlan) -> None:
    deadline = time.monotonic() + _DEATH_DEADLINE_S
    while cgroups.populated(group) and time.monotonic() < deadline:
        time.sleep(0.001)


def alive(layout: Layout, sandbox_id: SandboxId) -> bool:
    """Return whether the sandbox's first process lives, on this boot."""
    cell = layout.cell(sandbox_id)
    state, identity = read_state(cell), read_pid(cell)
    if state is None or identity is None or state.boot_id != boot_id():
        return False
    pinned = processes.pin(*identity)
    if pinned is None:
        return False
    pinned.close()
    return True


def _ignore(descriptor: int) -> None:
    del descriptor


def close_later(descriptor: int | None, *, after: Callable[[int], None] = _ignore) -> None:
    """Close the descriptor in a background thread, after `after` has run with it.

    Closing the last reference to a mount namespace unmounts everything in it, which takes a
    millisecond or more. Nothing is visible or running by then, so no caller needs to wait. If the
    process ends first, the kernel closes all its descriptors. Calls are served in order.
    """
    global _closing_process
    with _closing_lock:
        if _closing_process != os.getpid():
            try:
                threading.Thread(
                    target=_close_queued, name="sandkasten-closing", daemon=True
                ).start()
            except RuntimeError:
                # The interpreter is shutting down, or the host has no thread left.
                if descriptor is not None:
                    _close(descriptor, after)
                return
            _closing_process = os.getpid()
    if descriptor is not None:
        _to_close.put((descriptor, after))


def _close_queued() -> None:
    while True:
        _close(*_to_close.get())


def _close(descriptor: int, after: Callable[[int], None]) -> None:
    with contextlib.suppress(OSError):
        after(descriptor)
    with contextlib.suppress(OSError):
        os.close(descriptor)
