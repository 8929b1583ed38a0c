"""A sandbox of an OCI runtime that is alive, or was: dialling it, measuring it, removing it.

No command of the runtime is needed for any of it. All that a runtime keeps lies in the cell's own
directory and groups, so the one way out is that of every sandbox of this machine,
`linux.removal.remove`; it takes milliseconds, where `runsc delete` takes seconds.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandkasten.backends.oci.oci_config import SOCKET_NAME
from sandkasten.errors import SandboxLost
from sandkasten.linux.cgroup import cgroups
from sandkasten.linux.cgroup.pausable_group import PausableGroup
from sandkasten.linux.sandbox_removal import alive, remove
from sandkasten.wire.unix_socket import connect_unix

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.backends.oci.oci_config import Kind
    from sandkasten.linux.state_layout import Layout
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.limits import Unenforced
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten.ports import ByteStream

# A runner that binds its own socket takes it away for a moment when it is asked to be quiet, and a
# pause may come in between.
_REBIND_S, _LOOK_AGAIN_S = 2.0, 0.005


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
        # Whoever broke out of gVisor could write to the socket's directory: a link there must not
        # lead us to another socket of this machine. What is opened is what is dialled.
        found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(found).st_mode):
                raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
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
