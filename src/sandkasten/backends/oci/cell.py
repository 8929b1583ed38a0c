"""A sandbox of an OCI runtime, running or ended: connecting to it, its usage and its removal.

None of this needs a command of the runtime. Everything a runtime stores is in the cell's own
directory and groups, so it is removed like every sandbox of this machine, by
`linux.sandbox_removal.remove`. That takes milliseconds, where `runsc delete` takes seconds.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any

from sandkasten.backends.oci.oci_config import SOCKET_NAME
from sandkasten.errors import SandboxLost
from sandkasten.lazy_dataclass import dataclass
from sandkasten.linux import egress
from sandkasten.linux.cgroup import cgroups
from sandkasten.linux.cgroup.pausable_group import PausableGroup
from sandkasten.linux.sandbox_removal import alive, remove
from sandkasten.wire.unix_socket import connect_unix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sandkasten.backends.oci.oci_config import Kind
    from sandkasten.linux.state_layout import Layout
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.inspection import Inspection
    from sandkasten.model.sandbox.limits import Unenforced
    from sandkasten.model.sandbox.network_policy import NetworkCounts, NetworkPolicy
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten.ports import ByteStream

# A runner that binds its own socket removes it briefly when it is told to stop accepting, and a
# pause may come in between.
_REBIND_S, _LOOK_AGAIN_S = 2.0, 0.005


def socket_path(cell: Path, kind: Kind) -> Path:
    """Return our socket, or the one that the runner has bound in a directory shared with us."""
    return cell / "listen" / SOCKET_NAME if kind == "gvisor" else cell / "socket"


@dataclass(slots=True)
class OciCell:
    id: SandboxId
    layout: Layout
    hierarchies: cgroups.Hierarchies
    kind: Kind
    unenforced: tuple[Unenforced, ...] = field(default=())
    warnings: tuple[str, ...] = ()
    """See `ports.Cautions`."""

    async def dial(self) -> ByteStream:
        path = socket_path(self.layout.cell(self.id), self.kind)
        deadline = time.monotonic() + _REBIND_S
        try:
            while True:
                try:
                    return await self._connect(path)
                except (FileNotFoundError, ConnectionRefusedError):
                    waits = self.kind == "gvisor" and time.monotonic() < deadline
                    if not waits or not alive(self.layout, self.id):
                        raise
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except OSError as exc:
            raise SandboxLost(
                f"sandbox {self.id} does not answer: {exc.strerror or exc}",
                hint="it has ended; create a new one",
            ) from exc

    async def _connect(self, path: Path) -> ByteStream:
        # Code that broke out of gVisor could write to the socket's directory: a link there must not
        # lead us to another socket of this machine. So we connect to what was opened.
        found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(found).st_mode):
                raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
            same_kernel = self.kind != "gvisor"
            return await connect_unix(f"/proc/self/fd/{found}", same_kernel=same_kernel)
        finally:
            os.close(found)

    async def usage(self) -> Usage:
        if not self.layout.cell(self.id).exists():
            raise SandboxLost(f"sandbox {self.id} is gone", hint="create a new one")
        # A dozen small reads of kernel files: faster than handing them to a thread.
        return cgroups.usage(self.hierarchies, self.id)

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
