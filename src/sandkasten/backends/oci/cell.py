"""A sandbox of an OCI runtime that is alive, or was: dialling it, measuring it, removing it.

No command of the runtime is needed for any of it. All that a runtime keeps lies in the cell's own
directory and groups, so the one way out is that of every sandbox of this machine,
`linux.removal.remove`; it takes milliseconds, where `runsc delete` takes seconds.
"""

from __future__ import annotations

import asyncio
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandkasten.errors import SandboxLost
from sandkasten.linux import cgroups
from sandkasten.linux.pausing import PausableGroup
from sandkasten.linux.removal import remove
from sandkasten.wire.unix import connect_unix

from .config import SOCKET_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.linux.layout import Layout
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.limits import Unenforced
    from sandkasten.model.usage import Usage
    from sandkasten.ports import ByteStream

    from .config import Kind


def socket_path(cell: Path, kind: Kind) -> Path:
    """Ours, or the one that the runner has bound in a directory that it shares with us."""
    return cell / "listen" / SOCKET_NAME if kind == "gvisor" else cell / "socket"


@dataclass(slots=True)
class OciCell:
    id: SandboxId
    layout: Layout
    hierarchies: cgroups.Hierarchies
    kind: Kind
    unenforced: tuple[Unenforced, ...] = field(default=())

    async def dial(self) -> ByteStream:
        try:
            return await self._connect(socket_path(self.layout.cell(self.id), self.kind))
        except OSError as exc:
            raise SandboxLost(
                f"sandbox {self.id} does not answer: {exc.strerror or exc}",
                hint="it has ended; create a new one",
            ) from exc

    async def _connect(self, path: Path) -> ByteStream:
        # Whoever broke out of gVisor could write to the socket's directory: a link there must not
        # lead us to another socket of this machine. What is opened is what is dialled.
        found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(found).st_mode):
                raise ConnectionRefusedError("there is no socket")
            return await connect_unix(f"/proc/self/fd/{found}")
        finally:
            os.close(found)

    async def usage(self) -> Usage:
        if not self.layout.cell(self.id).exists():
            raise SandboxLost(f"sandbox {self.id} is gone", hint="create a new one")
        # A dozen small reads of kernel files: quicker than a hand-over to a thread.
        return cgroups.usage(self.hierarchies, self.id)

    async def destroy(self) -> None:
        await asyncio.to_thread(remove, self.layout, self.id)

    async def pause(self) -> None:
        """See `ports.Pausable`. UnsupportedByBackend where the sandbox has no cgroup."""
        await self._group.pause()

    async def resume(self) -> None:
        await self._group.resume()

    async def reclaim(self) -> int:
        """See `ports.Reclaims`."""
        return await self._group.reclaim()

    @property
    def _group(self) -> PausableGroup:
        return PausableGroup(self.id, self.layout, self.hierarchies)
