"""The sandboxes of a backend that starts them with our launcher: made, found again and removed.

Shared by `local`, `oci` and `gvisor`, which differ in what the launcher is told and in how a runner
is reached. All that such a sandbox has is in its own directory, in its cgroups and in its range of
host ids, so that no process is its parent and any process can remove it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import field
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from sandkasten.disk.cleanup import in_own_thread
from sandkasten.disk.free_space import file_system_of
from sandkasten.disk.os_errors import disk_error, translated
from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    SandboxLost,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import TMP, CopiedFiles, CopiedVolume
from sandkasten_runtime.linux import egress, processes
from sandkasten_runtime.linux.cgroup import cgroups
from sandkasten_runtime.linux.cgroup.pausable_group import PausableGroup
from sandkasten_runtime.linux.confinement import id_ranges
from sandkasten_runtime.linux.launch_plan import CHANGES, VOLUME
from sandkasten_runtime.linux.sandbox_removal import alive, remove
from sandkasten_runtime.linux.state_layout import read_pid, read_state
from sandkasten_runtime.linux.storage import memory_tree, tree_copy, workspace_image
from sandkasten_runtime.linux.storage.root_changes import changes_of
from sandkasten_runtime.linux.undoable_work import whole_or_nothing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import RootChanges
    from sandkasten.model.sandbox.inspection import Inspection
    from sandkasten.model.sandbox.limits import Unenforced
    from sandkasten.model.sandbox.network_policy import NetworkCounts, NetworkPolicy
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten.ports import ByteStream
    from sandkasten_runtime.linux.programs import Programs
    from sandkasten_runtime.linux.state_layout import Layout

    Connect = Callable[[SandboxId], Awaitable[ByteStream]]

TMP_FILE: Final = "tmp"
"""The file of /tmp beside the copied volumes."""
# <linux/magic.h>
_TMPFS: Final = 0x0102_1994
# As many as a fork makes at once. Each keeps the disk busy, and the memory of a /tmp that is
# restored counts for this process.
_RESTORED_AT_ONCE: Final = 4


class LaunchedSandboxes:
    """The sandboxes of one backend and one data directory.

    `connect` connects to the runner of a sandbox and raises OSError if it does not answer.
    `shows_memory`: the file systems in memory of a sandbox are those of this kernel.
    """

    def __init__(
        self, layout: Layout, programs: Programs, connect: Connect, *, shows_memory: bool = True
    ) -> None:
        self.layout = layout
        self._shows_memory = shows_memory
        self.programs = programs
        """As shipped, until `prepare` has copied the runner."""
        self._shipped = programs
        self._connect = connect
        self._restoring = asyncio.Semaphore(_RESTORED_AT_ONCE)

    @cached_property
    def hierarchies(self) -> cgroups.Hierarchies:
        return cgroups.detect() if os.geteuid() == 0 else cgroups.Hierarchies({})

    def prepare(self) -> None:
        """Make the data directory and copy the runner into it. Blocking."""
        try:
            self.layout.prepare()
            self.programs = self._shipped.installed(self.layout.shared("programs"))
        except OSError as exc:
            raise disk_error("prepare the data directory", exc, BackendUnavailable) from exc

    async def make(
        self,
        sandbox_id: SandboxId,
        fill: Callable[[Path], LaunchedCell],
        files: CopiedFiles | None = None,
    ) -> LaunchedCell:
        """Make the directory of the sandbox, let `fill` start it, and restore its /tmp, in a
        thread. Nothing is left of it on an error or a cancellation.
        """

        def undo() -> None:
            remove(self.layout, sandbox_id)

        if files is None:
            return await whole_or_nothing(lambda: self._make(sandbox_id, fill), undo)
        stop = Event()

        def restore() -> LaunchedCell:
            return self._make(sandbox_id, lambda cell: self._restored(fill(cell), files, stop))

        async with self._restoring:
            return await whole_or_nothing(restore, undo, hurry=stop.set)

    def _make(self, sandbox_id: SandboxId, fill: Callable[[Path], LaunchedCell]) -> LaunchedCell:
        directory = self.layout.cell(sandbox_id)
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError as exc:
            raise Conflict(f"sandbox {sandbox_id} exists already") from exc
        try:
            return fill(directory)
        except BaseException as exc:
            with contextlib.suppress(SandkastenError):
                remove(self.layout, sandbox_id)
            if isinstance(exc, OSError):
                raise disk_error(f"make sandbox {sandbox_id}", exc, BackendUnavailable) from exc
            raise

    def _restored(self, cell: LaunchedCell, files: CopiedFiles, stop: Event) -> LaunchedCell:
        if files.tmp and self._shows_memory:
            # No code of the user runs yet that could change it meanwhile.
            with (
                _memory(self.layout.cell(cell.id)) as (tmp, first_id),
                Path(files.path, TMP_FILE).open("rb") as saved,
            ):
                memory_tree.restore(saved, tmp, first_id, stop)
        return cell

    def cell(
        self,
        sandbox_id: SandboxId,
        unenforced: tuple[Unenforced, ...] = (),
        warnings: tuple[str, ...] = (),
    ) -> LaunchedCell:
        return LaunchedCell(
            sandbox_id,
            self.layout,
            self.hierarchies,
            self._connect,
            unenforced,
            warnings,
            self._shows_memory,
        )

    async def attach(self, sandbox_id: SandboxId) -> LaunchedCell:
        if not alive(self.layout, sandbox_id):
            raise SandboxLost(f"sandbox {sandbox_id} is not running", hint="create a new one")
        return self.cell(sandbox_id)

    async def final_counts(self, sandbox_id: SandboxId) -> NetworkCounts:
        """See `ports.CountsAfterEnd`."""
        return await egress.counts(self.layout.cell(sandbox_id))

    async def discard(self, sandbox_id: SandboxId) -> None:
        """Remove a sandbox that is no longer alive, as `destroy` does."""
        await asyncio.to_thread(remove, self.layout, sandbox_id)


@dataclass(slots=True)
class LaunchedCell:
    """A sandbox, running or ended. No method needs a command of an OCI runtime: `runsc delete`
    takes seconds, where our own removal takes milliseconds.
    """

    id: SandboxId
    layout: Layout
    hierarchies: cgroups.Hierarchies
    connect: Connect
    unenforced: tuple[Unenforced, ...] = field(default=())
    warnings: tuple[str, ...] = ()
    """See `ports.Cautions`."""
    shows_memory: bool = True

    async def dial(self) -> ByteStream:
        try:
            return await self.connect(self.id)
        except OSError as exc:
            raise SandboxLost(
                f"sandbox {self.id} does not answer: {exc.strerror or exc}",
                hint="it has ended; create a new one",
            ) from exc

    async def usage(self) -> Usage:
        if not self.layout.cell(self.id).exists():
            raise SandboxLost(f"sandbox {self.id} is gone", hint="create a new one")
        # A dozen small reads of kernel files: faster than handing them to a thread.
        return cgroups.usage(self.hierarchies, self.id)

    def changes(self) -> AbstractContextManager[RootChanges]:
        """See `ports.Readable`."""
        return changes_of(self.layout, self.id)

    async def destroy(self) -> None:
        await asyncio.to_thread(remove, self.layout, self.id)

    async def pause(self) -> None:
        """See `ports.Pausable`. Raise UnsupportedByBackend if the sandbox has no cgroup."""
        await self._group.pause()

    async def resume(self) -> None:
        await self._group.resume()

    async def flush_files(self) -> int:
        """See `ports.CopiesFiles`."""
        return await in_own_thread(self._flush_files)

    async def copy_files(self, target: str, stop: Event) -> CopiedFiles:
        return await in_own_thread(self._copy_files, Path(target), stop)

    async def reserve_files(self, min_free: int) -> None:
        await in_own_thread(self._reserve_files, min_free)

    def _flush_files(self) -> int:
        size = 0
        with translated("write back a workspace", BackendUnavailable):
            for image, _ in self._volumes():
                workspace_image.flush(image)
                with image.open("rb") as file:
                    # A copy that shares blocks would wait for the disk while nothing inside runs.
                    os.fsync(file.fileno())
                    size += os.fstat(file.fileno()).st_blocks * 512
        return size

    def _copy_files(self, target: Path, stop: Event) -> CopiedFiles:
        shared, tmp = True, False
        volumes = self._volumes()
        with translated("copy a workspace", BackendUnavailable):
            for image, volume in volumes:
                workspace_image.flush(image)
                with image.open("rb") as source, (target / volume.name).open("xb") as copy:
                    os.fchmod(copy.fileno(), 0o600)
                    shared &= tree_copy.share_or_copy(source.fileno(), copy.fileno(), stop)
            if self.shows_memory:
                with (
                    _memory(self.layout.cell(self.id)) as (root, first_id),
                    (target / TMP_FILE).open("xb") as copy,
                ):
                    memory_tree.save(root, copy, first_id, stop)
                tmp = True
        return CopiedFiles(
            os.fspath(target),
            tuple(volume for _, volume in volumes),
            "reflink" if shared else "extents",
            tmp,
        )

    def _reserve_files(self, min_free: int) -> None:
        with translated("reserve the space of a workspace", BackendUnavailable):
            for image, _ in self._volumes():
                # Only what a copy shares: the image has all other blocks already.
                workspace_image.reserve_space(image, min_free)

    def _volumes(self) -> list[tuple[Path, CopiedVolume]]:
        """Return the images that the sandbox writes to. Raise UnsupportedByBackend if its files
        are elsewhere.
        """
        cell = self.layout.cell(self.id)
        state = read_state(cell)
        if state is None:
            raise SandboxLost(f"sandbox {self.id} is gone", hint="create a new one")
        base = 0 if state.slot is None else id_ranges.base_of(state.slot)
        first = dict(state.first_ids)
        volumes: list[tuple[Path, CopiedVolume]] = []
        workspace, first_id = cell / VOLUME, first.get(VOLUME, base)
        if state.volume is not None:
            workspace, first_id = Path(state.volume), 0
        if state.slot is None or not workspace.is_file():
            raise UnsupportedByBackend(
                f"the files of sandbox {self.id} are in memory or in a directory, and only those "
                "in an ext4 image can be copied",
                hint="run as root on a machine with loop devices (sandkasten doctor); a sandbox "
                "that an earlier version made must be made again",
                sandbox_id=self.id,
            )
        volumes.append((workspace, CopiedVolume("workspace", first_id)))
        if (cell / CHANGES).exists():
            volumes.append((cell / CHANGES, CopiedVolume("changes", first.get(CHANGES, base))))
        return volumes

    async def reclaim(self) -> int:
        """See `ports.Reclaims`."""
        return await self._group.reclaim()

    async def change_network(
        self,
        policy: NetworkPolicy,
        reachable: Sequence[str],
        inspection: Inspection | None = None,
    ) -> None:
        """See `ports.Networked`."""
        await egress.change(self.layout.cell(self.id), policy, reachable, inspection)

    async def cut_network(self) -> bool:
        return await asyncio.to_thread(egress.cut, self.layout.cell(self.id))

    async def network_counts(self) -> NetworkCounts:
        return await egress.counts(self.layout.cell(self.id))

    async def network_records(self, after: int, since: float = 0.0) -> Sequence[Mapping[str, Any]]:
        return await asyncio.to_thread(egress.records, self.layout.cell(self.id), after, since)

    @property
    def _group(self) -> PausableGroup:
        return PausableGroup(self.id, self.layout, self.hierarchies)


@contextlib.contextmanager
def _memory(cell: Path) -> Iterator[tuple[int, int]]:
    """Yield an open /tmp of a sandbox, and the id on the host that is 0 inside."""
    state, identity = read_state(cell), read_pid(cell)
    pinned = processes.pin(*identity) if identity else None
    if pinned is None or state is None or state.slot is None:
        raise SandboxLost(f"sandbox {cell.name} is gone", hint="create a new one")
    try:
        # Our own mount: nothing inside can move it, or place something else there.
        tmp = os.open(
            f"/proc/{pinned.pid}/root{TMP}",
            os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
        )
    finally:
        pinned.close()
    try:
        if file_system_of(tmp) != _TMPFS:
            raise SandboxLost(f"sandbox {cell.name} is ending", hint="create a new one")
        yield tmp, id_ranges.base_of(state.slot)
    finally:
        os.close(tmp)
