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
from typing import TYPE_CHECKING, Any

from sandkasten.disk.os_errors import disk_error
from sandkasten.errors import BackendUnavailable, Conflict, SandboxLost, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.linux import egress
from sandkasten_runtime.linux.cgroup import cgroups
from sandkasten_runtime.linux.cgroup.pausable_group import PausableGroup
from sandkasten_runtime.linux.sandbox_removal import alive, remove
from sandkasten_runtime.linux.storage.root_changes import changes_of
from sandkasten_runtime.linux.undoable_work import whole_or_nothing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

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


class LaunchedSandboxes:
    """The sandboxes of one backend and one data directory.

    `connect` connects to the runner of a sandbox and raises OSError if it does not answer.
    """

    def __init__(self, layout: Layout, programs: Programs, connect: Connect) -> None:
        self.layout = layout
        self.programs = programs
        """As shipped, until `prepare` has copied the runner."""
        self._shipped = programs
        self._connect = connect

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
        self, sandbox_id: SandboxId, fill: Callable[[Path], LaunchedCell]
    ) -> LaunchedCell:
        """Make the directory of the sandbox, and let `fill` start it, in a thread. Nothing is left
        of it on an error or a cancellation.
        """
        return await whole_or_nothing(
            lambda: self._make(sandbox_id, fill), lambda: remove(self.layout, sandbox_id)
        )

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

    def cell(
        self,
        sandbox_id: SandboxId,
        unenforced: tuple[Unenforced, ...] = (),
        warnings: tuple[str, ...] = (),
    ) -> LaunchedCell:
        return LaunchedCell(
            sandbox_id, self.layout, self.hierarchies, self._connect, unenforced, warnings
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
