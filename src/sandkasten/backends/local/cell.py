"""A local sandbox, running or ended: connecting to it, its usage and its removal.

`linux.sandbox_removal.remove` removes it, for `destroy`, for a failed `create`, and for leftovers.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import field
from typing import TYPE_CHECKING, Any

from sandkasten.errors import SandboxLost
from sandkasten.lazy_dataclass import dataclass
from sandkasten.linux import egress
from sandkasten.linux.cgroup import cgroups
from sandkasten.linux.cgroup.pausable_group import PausableGroup
from sandkasten.linux.sandbox_removal import remove
from sandkasten.linux.storage.root_changes import changes_of
from sandkasten.wire.unix_socket import connect_unix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from sandkasten.linux.state_layout import Layout
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import RootChanges
    from sandkasten.model.sandbox.inspection import Inspection
    from sandkasten.model.sandbox.limits import Unenforced
    from sandkasten.model.sandbox.network_policy import NetworkCounts, NetworkPolicy
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten.ports import ByteStream


@dataclass(slots=True)
class LocalCell:
    id: SandboxId
    layout: Layout
    hierarchies: cgroups.Hierarchies
    unenforced: tuple[Unenforced, ...] = field(default=())
    warnings: tuple[str, ...] = ()
    """See `ports.Cautions`."""

    async def dial(self) -> ByteStream:
        try:
            path = os.fspath(self.layout.cell(self.id) / "socket")
            return await connect_unix(path, same_kernel=True)
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
