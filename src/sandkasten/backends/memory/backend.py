"""`MemoryBackend`: the port on top of fake places that live in this process.

A cell dies with the process; within it, `attach` and `owned` work as for any other backend.
Fails with SandboxLost for a place that is gone and Conflict for an id that is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.backends.memory.archive import ARCHIVE_VERBS
from sandkasten.backends.memory.machine import Machine, PortHandler
from sandkasten.backends.memory.pipe import MemoryStream, stream_pair
from sandkasten.backends.memory.server import MAX_CONNECTIONS, Connection
from sandkasten.backends.memory.verbs_commands import COMMAND_VERBS
from sandkasten.backends.memory.verbs_files import FILE_VERBS
from sandkasten.backends.memory.verbs_rest import OTHER_VERBS
from sandkasten.backends.memory.workspaces import MemoryWorkspaces
from sandkasten.errors import Busy, Conflict, SandboxLost, UnsupportedByBackend
from sandkasten.model.sandbox.readiness import Readiness, Requirement
from sandkasten.model.sandbox.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec

_VERBS = {**COMMAND_VERBS, **FILE_VERBS, **ARCHIVE_VERBS, **OTHER_VERBS}


class MemoryBackend:
    name = "memory"

    def __init__(self) -> None:
        self._machines: dict[SandboxId, Machine] = {}
        self.workspaces = MemoryWorkspaces()

    async def probe(self) -> Readiness:
        return Readiness(
            ready=True,
            requirements=(Requirement("process", ok=True, state="places live in this process"),),
        )

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> MemoryCell:
        if sandbox_id in self._machines:
            raise Conflict(f"sandbox {sandbox_id} exists already", hint="choose another id")
        if spec.mounts:
            raise UnsupportedByBackend(
                "a place in memory cannot show files of the host",
                hint="use the local backend, or leave the mounts out",
            )
        workspace = None
        if spec.workspace is not None:
            workspace = self.workspaces.tree(spec.workspace.path)
            if workspace is None:
                raise UnsupportedByBackend(
                    "a place in memory cannot show a workspace on disk",
                    hint="use the local backend",
                )
        machine = self._machines[sandbox_id] = Machine(spec, workspace)
        return MemoryCell(self, sandbox_id, machine)

    async def attach(self, sandbox_id: SandboxId) -> MemoryCell:
        machine = self._machines.get(sandbox_id)
        if machine is None or machine.ended.is_set():
            raise _lost(sandbox_id)
        return MemoryCell(self, sandbox_id, machine)

    async def owned(self) -> Sequence[SandboxId]:
        return tuple(self._machines)

    async def discard(self, sandbox_id: SandboxId) -> None:
        """Remove whatever is held for the id. Twice is fine; so is an unknown id."""
        machine = self._machines.pop(sandbox_id, None)
        if machine is not None:
            await machine.die()


class MemoryCell:
    """One fake place."""

    def __init__(self, backend: MemoryBackend, sandbox_id: SandboxId, machine: Machine) -> None:
        self._backend = backend
        self._id = sandbox_id
        self._machine = machine

    async def dial(self) -> MemoryStream:
        machine = self._machine
        if machine.ended.is_set() or not machine.accepting:
            raise _lost(self._id)
        if machine.connections >= MAX_CONNECTIONS:
            raise Busy(
                f"sandbox {self._id} has {MAX_CONNECTIONS} connections", hint="close some of them"
            )
        ours, theirs = stream_pair()
        machine.serve(Connection(theirs, machine, _VERBS).run())
        return ours

    async def usage(self) -> Usage:
        limits = self._machine.spec.limits
        return Usage(
            memory_limit_bytes=limits.memory_bytes,
            pids=len(self._machine.processes) + 1,
            pids_limit=limits.pids,
        )

    async def destroy(self) -> None:
        await self._backend.discard(self._id)
        await self._machine.die()

    def listen(self, port: int, handler: PortHandler) -> None:
        """Let something answer on a port of the place; tests have no server to start there."""
        self._machine.ports[port] = handler

    async def crash(self) -> None:
        """End the place as a kill of its first process would: nothing is forgotten by us."""
        await self._machine.die()


def _lost(sandbox_id: SandboxId) -> SandboxLost:
    return SandboxLost(
        f"sandbox {sandbox_id} is not in this process's memory",
        hint="memory sandboxes end with the process that made them; create a new one",
        sandbox_id=sandbox_id,
    )
