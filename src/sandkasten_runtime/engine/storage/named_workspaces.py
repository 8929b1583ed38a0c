"""Named workspaces as their owner sees them: list, create, measure, copy, resize, delete.

Every change holds the lock of the name and is refused while a living sandbox has the workspace;
reading needs no lock. A damaged workspace can be listed and deleted, nothing else.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias

from sandkasten.disk.cleanup import finish as to_the_end
from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    Conflict,
    SandkastenError,
    WorkspaceDamaged,
    WorkspaceNotFound,
)
from sandkasten.model.access.tenancy import DEFAULT_TENANT, checked_tenant, scoped, unscoped
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.model.sandbox.workspace import (
    Measure,
    Workspace,
    check_unused,
    checked_size,
    checked_workspace_name,
    plain_name,
)
from sandkasten.ports import MaintainsWorkspaces, backend_part, may_hold
from sandkasten_runtime.engine.lifecycle.tenant_quotas import Need
from sandkasten_runtime.engine.lifecycle.workspace_claims import keeper_name
from sandkasten_runtime.wire.messages import decode_stats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.workspace import WorkspaceRules
    from sandkasten.ports import Backend, EventSink, Store
    from sandkasten_runtime.engine.drain import Drain
    from sandkasten_runtime.engine.handles import Handles
    from sandkasten_runtime.engine.lifecycle.tenant_quotas import TenantQuotas
    from sandkasten_runtime.engine.lifecycle.workspace_claims import WorkspaceClaims
    from sandkasten_runtime.engine.lifecycle.workspace_loans import Remover

_List: TypeAlias = list[Workspace]

# A sandbox that does not answer costs its own number, not the whole answer.
_STATS_TIMEOUT_S = 2.0


class NamedWorkspaces:
    def __init__(
        self,
        *,
        claims: WorkspaceClaims,
        store: Store,
        handles: Handles,
        rules: WorkspaceRules,
        remover: Remover,
        quotas: TenantQuotas,
        in_flight: Drain,
        default_backend: str,
        events: EventSink | None,
    ) -> None:
        self._default_backend = default_backend
        self._quotas = quotas
        self._in_flight = in_flight
        self._claims = claims
        self._store = store
        self._handles = handles
        self._rules = rules
        self._remover = remover
        self._events = events

    async def list(self, *, tenant: str = DEFAULT_TENANT) -> _List:
        """Return all workspaces of a tenant by name, without their usage; `get` measures it."""
        names = [
            stored_name
            for stored_name in await self._claims.port.names()
            if unscoped(stored_name)[0] == tenant
        ]
        rows = [row for row in await self._store.list() if row.workspace_id is not None]
        living = await self._claims.living(rows)
        described = []
        for name in names:
            holders = [row for row in living if row.workspace_id == name]
            with suppress(WorkspaceNotFound):  # deleted while we listed
                described.append(await self._described(name, holders, Measure(None, None)))
        return described

    async def get(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Workspace:
        """Return one workspace with its usage. Raise WorkspaceNotFound."""
        return await self._get(_kept(name, tenant))

    async def _get(self, name: str) -> Workspace:
        rows = [row for row in await self._store.list() if row.workspace_id == name]
        holders = await self._claims.living(rows)
        try:
            measure = await self._measure(name, holders)
        except WorkspaceDamaged:
            measure = Measure(None, None)
        return await self._described(name, holders, measure)

    async def create(
        self,
        name: str,
        *,
        size_mb: float | None = None,
        tenant: str = DEFAULT_TENANT,
        quota: TenantQuota | None = None,
    ) -> Workspace:
        """Create an empty workspace. Raise Conflict if the name is taken."""
        name = _kept(name, tenant)
        size = None if size_mb is None else checked_size(size_mb, self._rules)
        need = Need(disk_bytes=await self._quotas.of_workspace(name, size))
        with self._in_flight.within():
            async with (
                self._quotas.admitted(tenant, quota, need),
                self._claims.lock(name),
            ):
                await self._refuse_taken(name)
                keeper = await keeper_name(self._handles.backend(self._default_backend))
                await self._claims.make(name, size, keeper)
        self._emit("workspace.created", name)
        return await self._get(name)

    async def copy(
        self,
        source: str,
        target: str,
        *,
        tenant: str = DEFAULT_TENANT,
        quota: TenantQuota | None = None,
    ) -> Workspace:
        """Create a workspace with the same content and size. Raise Conflict while the source is in
        use.
        """
        source, target = _kept(source, tenant), _kept(target, tenant)
        if source == target:
            raise Conflict(
                f"workspace {plain_name(source)} cannot be copied to itself",
                hint="choose another name for the copy",
            )
        need = Need(disk_bytes=(await self._claims.port.get(source)).size_bytes)
        async with AsyncExitStack() as locks:
            locks.enter_context(self._in_flight.within())
            room = self._quotas.admitted(tenant, quota, need)
            await locks.enter_async_context(room)
            # Lock in a fixed order, or two copies in opposite directions would wait for each other.
            for name in sorted((source, target)):
                await locks.enter_async_context(self._claims.lock(name))
            holders = await self._claims.holders(source, self._remover)
            check_unused(source, "copied", holders)
            await self._claims.port.get(source)
            await self._refuse_taken(target)
            await self._claims.copy(source, target)
        self._emit("workspace.copied", target)
        return await self._get(target)

    async def resize(
        self,
        name: str,
        size_mb: float,
        *,
        tenant: str = DEFAULT_TENANT,
        quota: TenantQuota | None = None,
    ) -> Workspace:
        """Enlarge a workspace that no sandbox uses."""
        name = _kept(name, tenant)
        size = checked_size(size_mb, self._rules)
        more = max(0, size - (await self._claims.port.get(name)).size_bytes)
        need = Need(disk_bytes=more)
        with self._in_flight.within():
            async with (
                self._quotas.admitted(tenant, quota, need),
                self._unused(name, "resized"),
            ):
                await self._claims.resize(name, size)
        self._emit("workspace.resized", name)
        return await self._get(name)

    async def delete(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        """Delete a workspace and its files. Raise Conflict while a sandbox has it."""
        name = _kept(name, tenant)
        with self._in_flight.within(new=False):
            async with self._unused(name, "deleted"):
                await self._claims.remove(name)
        self._emit("workspace.deleted", name)

    async def tidy(self, backends: Iterable[Backend] = ()) -> None:
        """Remove what a crash left half made or half removed; skip what another process works
        on.
        """
        if not self._claims.kept:
            return
        port = self._claims.port
        for name in await port.half_made():
            with suppress(Busy):
                async with self._claims.lock(name, wait_s=0):
                    await to_the_end(port.clear(name))
        for backend in backends:
            if backend.capabilities.maintains_workspaces and may_hold(backend):
                with suppress(BackendUnavailable):
                    keeper = await backend_part(backend, MaintainsWorkspaces)
                    await self._claims.tidy(keeper)

    @asynccontextmanager
    async def _unused(self, name: str, attempt: str) -> AsyncIterator[None]:
        async with self._claims.lock(name):
            check_unused(name, attempt, await self._claims.holders(name, self._remover))
            yield

    async def _refuse_taken(self, name: str) -> None:
        if name in await self._claims.port.names():
            raise Conflict(
                f"workspace {plain_name(name)} already exists",
                hint="choose another name, or delete it first",
                workspace=plain_name(name),
            )

    async def _described(self, name: str, holders: Sequence[Record], measure: Measure) -> Workspace:
        used_by: tuple[str, ...] = tuple(
            holder.id for holder in holders if holder.acquired != "internal"
        )
        shared = any(holder.workspace_shared for holder in holders)
        try:
            stored = await self._claims.port.get(name)
        except WorkspaceDamaged as exc:
            return Workspace(
                plain_name(name),
                None,
                None,
                None,
                used_by=used_by,
                shared=shared,
                problem=exc.message,
            )
        return Workspace(
            plain_name(name),
            stored.kind,
            stored.size_bytes,
            stored.created_at,
            used_bytes=measure.used_bytes,
            allocated_bytes=measure.allocated_bytes,
            used_by=used_by,
            shared=shared,
        )

    async def _measure(self, name: str, holders: Sequence[Record]) -> Measure:
        port = self._claims.port
        measure = await port.measure(name)
        if not holders or (await port.get(name)).kind != "image":
            return measure
        # The disk image lags behind its mount; sandboxes that mounted it know the current usage.
        return Measure(await self._used_inside(holders[0]), measure.allocated_bytes)

    async def _used_inside(self, record: Record) -> int | None:
        try:
            async with asyncio.timeout(_STATS_TIMEOUT_S):
                _, channel = await self._handles.connect(record.id)
                stats = decode_stats(await channel.call("stats", timeout_s=_STATS_TIMEOUT_S))
        except (SandkastenError, TimeoutError):
            return None
        disk = stats.disk.get(WORKSPACE)
        return None if disk is None else disk.used

    def _emit(self, event: str, name: str) -> None:
        if self._events is not None:
            self._events.emit(event, {"workspace": name})


def _kept(name: str, tenant: str) -> str:
    """Return the checked name under which the workspace is kept."""
    return scoped(checked_tenant(tenant), checked_workspace_name(name))
