"""The backend of a provider: a machine for each sandbox, with our runner in it.

Knows isolation and nothing else. A record is written to the data directory before the machine is
requested, and the machine is created with labels that name the installation and the sandbox. So
after any interruption the machine is found by record or label and removed, even if the provider
creates it later.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from sandkasten.disk.cleanup import finish
from sandkasten.errors import Conflict, SandkastenError
from sandkasten.model.ids import is_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.readiness import Readiness, Requirement
from sandkasten_cloud import differences, machine_plan, provider_errors
from sandkasten_cloud.cell import CloudCell
from sandkasten_cloud.machine_list import MachineList
from sandkasten_runtime.backends.gate import entry_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.errors import UnsupportedByBackend
    from sandkasten.model.backends.capabilities import Capabilities
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec, HostMount
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten_cloud.machine_records import MachineRecords
    from sandkasten_cloud.provider import Provider
    from sandkasten_cloud.provider_options import ProviderOptions

_UNDO_S: Final = 20.0


class CloudBackend:
    """Implements Backend, KeepsImages, Remote and RefusesNetworks."""

    def __init__(
        self,
        provider: Provider,
        records: MachineRecords,
        owner: str,
        options: ProviderOptions,
        capabilities: Capabilities,
    ) -> None:
        self.capabilities = capabilities
        self._provider = provider
        self._machines = MachineList(provider)
        self._records = records
        self._owner = owner
        self._options = options
        self._cells: WeakSet[CloudCell] = WeakSet()
        self._programs: Mapping[str, bytes] | None = None

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def differences(self) -> Sequence[differences.Difference]:
        """Return what sandboxes here do not have."""
        return self._provider.traits.differences

    # ---- the verbs

    async def probe(self) -> Readiness:
        try:
            await self._read_programs()
            readiness = await self._provider.check()
        except SandkastenError as exc:
            title = self._provider.traits.title
            line = Requirement(title, False, exc.message, exc.hint)
            return Readiness(False, f"{title}: {exc.message}", exc.hint, (line,))
        return Readiness(
            readiness.ready,
            readiness.reason,
            readiness.remedy,
            readiness.requirements,
            self._provider.traits.unenforced,
        )

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> CloudCell:
        differences.check(spec, self.name, self._provider.traits)
        programs = await self._read_programs()
        keys = await asyncio.to_thread(entry_keys.make_keys, sandbox_id, self.name)
        if not await asyncio.to_thread(self._records.begin, sandbox_id, keys):
            raise Conflict(f"sandbox {sandbox_id} exists already", hint="use another id")
        order = machine_plan.order(sandbox_id, spec, self._options, self._owner, keys, programs)
        cell: CloudCell | None = None
        try:
            async with asyncio.timeout(self._options.start_s):
                machine_id = await self._provider.start(order)
            self._machines.add(sandbox_id, machine_id)
            await asyncio.to_thread(self._records.complete, sandbox_id, machine_id)
            cell = self._cell(sandbox_id, machine_id, keys)
            await cell.greet(self._options.start_s)
        except BaseException as exc:
            if cell is not None:
                await asyncio.shield(cell.let_go())
            await finish(self._undo(sandbox_id))
            if isinstance(exc, TimeoutError):
                title, late = self._provider.traits.title, f"{self._options.start_s:g} s"
                reason = f"a machine did not start within {late}"
                raise provider_errors.outage(self.name, title, reason) from exc
            raise
        return cell

    async def attach(self, sandbox_id: SandboxId) -> CloudCell:
        record = await asyncio.to_thread(self._records.read, sandbox_id)
        if record is None:
            raise provider_errors.lost(sandbox_id, "this data directory has no key of it")
        machine_id = await self._machines.find(sandbox_id)
        if machine_id is None or machine_id != (record.machine_id or machine_id):
            title = self._provider.traits.title
            raise provider_errors.lost(sandbox_id, f"{title} has no such machine")
        return self._cell(sandbox_id, machine_id, record.keys)

    async def owned(self) -> Sequence[SandboxId]:
        # Labels come from a provider; an id becomes the name of a file.
        machines = filter(is_sandbox_id, await self._machines.ids())
        return sorted({*machines, *await asyncio.to_thread(self._records.ids)})

    async def discard(self, sandbox_id: SandboxId) -> None:
        machine_id = await self._machines.look(sandbox_id)
        if machine_id is None:
            # Code that became root may have changed what the machine is found by.
            record = await asyncio.to_thread(self._records.read, sandbox_id)
            machine_id = "" if record is None else record.machine_id
        await self._remove(sandbox_id, machine_id)

    async def ping(self) -> None:
        """Do nothing: each request to the provider shows whether it answers."""

    async def aclose(self) -> None:
        await self._provider.aclose()

    # ---- optional Protocols

    async def sees_files(self) -> bool:
        """Implement `ports.Remote`."""
        return False

    async def network_refusal(self, policy: NetworkPolicy) -> UnsupportedByBackend | None:
        """Implement `ports.RefusesNetworks`."""
        return differences.network_refusal(policy, self.name, self._provider.traits)

    async def find_image(self, names: Sequence[str], *, fetch: bool = False) -> Image | None:
        """Return the provider's name of an image. Only a create shows whether it exists there."""
        return Image(self._provider.image(names), kind="engine") if names else None

    async def bring_image(self, image: Image) -> None:
        raise differences.refused("images of this daemon", self.name, self._provider.traits)

    async def bring_contents(self, mounts: Sequence[HostMount]) -> None:
        if mounts:
            raise differences.refused("mounts and packages", self.name, self._provider.traits)

    # ---- one sandbox

    def _cell(
        self, sandbox_id: SandboxId, machine_id: str, keys: entry_keys.EntryKeys
    ) -> CloudCell:
        cell = CloudCell(sandbox_id, machine_id, self._provider, self._machines, keys, self._remove)
        self._cells.add(cell)
        return cell

    async def _remove(self, sandbox_id: SandboxId, machine_id: str) -> None:
        """Remove the machine, and then its record. Twice is fine."""
        for cell in [cell for cell in self._cells if cell.id == sandbox_id]:
            cell.forget()
            await cell.let_go()
        if machine_id:
            await self._provider.stop(machine_id)
        self._machines.drop(sandbox_id)
        await asyncio.to_thread(self._records.remove, sandbox_id)

    async def _undo(self, sandbox_id: SandboxId) -> None:
        """Remove what a create has made. If the provider does not answer, the record stays for
        the reaper, which also finds by label what the provider makes later.
        """
        with contextlib.suppress(SandkastenError, TimeoutError):
            async with asyncio.timeout(_UNDO_S):
                await self.discard(sandbox_id)

    async def _read_programs(self) -> Mapping[str, bytes]:
        if self._programs is None:
            self._programs = await asyncio.to_thread(machine_plan.read_programs, self._options)
        return self._programs
