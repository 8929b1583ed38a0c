"""Count what a tenant has against its quota, while holding the tenant's lock.

The lock is held until the new row is in the ledger, so two concurrent requests are counted one
after the other. Raises QuotaExceeded with the exceeded number. A tenant without limits is never
counted. Requests per second are counted in `api/request/rate_limit.py`, stored files in
`records/file_store.py`, bytes of the network in `engine/tenant_traffic.py`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from sandkasten.errors import QuotaExceeded, WorkspaceDamaged, WorkspaceNotFound
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import TenantTally, TenantUsage, unscoped
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.limits import MIB
from sandkasten.model.sandbox.network_limits import Allowance
from sandkasten.model.sandbox.network_policy import CLOSED, NetworkPolicy
from sandkasten.model.sandbox.network_shares import daily_allowance, shared_limits
from sandkasten.ports import TalliesTenants

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.network_policy import NetworkCounts
    from sandkasten.ports import SnapshotStore, Store
    from sandkasten_runtime.engine.handles import Handle
    from sandkasten_runtime.engine.lifecycle.planner import SandboxPlan
    from sandkasten_runtime.engine.lifecycle.workspace_claims import WorkspaceClaims
    from sandkasten_runtime.engine.network_control import NetworkControl
    from sandkasten_runtime.engine.tenant_traffic import TenantTraffic

# Held during a count and one small write; a longer wait means a dead disk.
_LOCK_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Need:
    """What a request adds."""

    sessions: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    network: NetworkPolicy = CLOSED


class StoredFiles(Protocol):
    """The part of `ports.FileStore` that a count needs."""

    async def usage(self, tenant: str) -> int: ...


class TenantQuotas:
    def __init__(
        self,
        store: Store,
        claims: WorkspaceClaims,
        stored_files: StoredFiles | None,
        traffic: TenantTraffic,
        control: NetworkControl,
        snapshots: SnapshotStore | None = None,
    ) -> None:
        self._snapshots = snapshots
        self._store = store
        self._claims = claims
        self._stored_files = stored_files
        self._traffic = traffic
        self._control = control

    async def need(self, plan: SandboxPlan) -> Need:
        """Return what a request adds; a workspace that already exists adds nothing."""
        limits = plan.spec.limits
        disk = limits.workspace_bytes
        if plan.workspace is not None:
            disk = await self.of_workspace(plan.workspace.name, plan.workspace.asked_bytes)
        return Need(1, limits.memory_bytes, disk, plan.spec.network)

    async def of_workspace(self, stored_name: str, requested_bytes: int | None) -> int:
        if stored_name in await self._claims.port.names():
            return 0
        return requested_bytes if requested_bytes is not None else self._claims.default_bytes

    @asynccontextmanager
    async def admitted(
        self, tenant: str, quota: TenantQuota | None, need: Need
    ) -> AsyncIterator[NetworkPolicy]:
        """Check the quota and yield the network with its share of it. The caller writes its row
        inside the block, where the next one counts it.
        """
        if quota is None or not _limits(quota):
            yield need.network
            return
        async with self._locked(tenant):
            try:
                network = await self._check(tenant, quota, need, await self._tally(tenant))
            except QuotaExceeded:
                # A sandbox that died unnoticed does not count.
                records = await self._records(tenant)
                living = await self._claims.living(records)
                if len(living) == len(records):
                    raise
                network = await self._check(tenant, quota, need, _sum(living), living)
            yield network

    @asynccontextmanager
    async def opened(
        self, handle: Handle, network: NetworkPolicy, quota: TenantQuota | None
    ) -> AsyncIterator[NetworkPolicy]:
        """Yield the new network of a living sandbox with its share of the quota, as `admitted`
        does.
        """
        self._traffic.forget(handle.record.id)
        if network.closed:
            # Counters of a closed network are read once more, and not before its sandbox ends.
            await self._traffic.counted(handle)
            yield replace(network, allowance=Allowance())
            await self._traffic.counted(handle)
            return
        if quota is None or not quota.limits_network:
            yield replace(network, allowance=Allowance())
            return
        tenant = handle.record.tenant
        async with self._locked(tenant):
            others = [
                record for record in await self._records(tenant) if record.id != handle.record.id
            ]
            counted = await self._traffic.counted(handle)
            yield await self._share(tenant, quota, network, others, counted)

    @asynccontextmanager
    async def max_stored_bytes(
        self, tenant: str, quota: TenantQuota | None
    ) -> AsyncIterator[int | None]:
        """Yield what sandboxes and named workspaces leave of the disk quota; None: no limit.

        No sandbox is admitted during the block, in which the caller stores its file.
        """
        if quota is None or quota.max_disk_bytes is None:
            yield None
            return
        async with self._locked(tenant):
            own = (await self._tally(tenant)).disk_bytes
            yield max(0, quota.max_disk_bytes - await self._disk(tenant, own))

    async def usage(self, tenant: str) -> TenantUsage:
        """Return what the tenant has of each quota now."""
        records = await self._records(tenant)
        tally = _sum(records)
        disk = await self._disk(tenant, tally.disk_bytes)
        if self._stored_files is not None:
            disk += await self._stored_files.usage(tenant)
        open_ones = [
            self._control.recorded(record).limits for record in records if record.network != "none"
        ]
        bandwidths = [
            limits.bandwidth_bps for limits in open_ones if limits.bandwidth_bps is not None
        ]
        return TenantUsage(
            sessions=tally.sessions,
            memory_bytes=tally.memory_bytes,
            disk_bytes=disk,
            network_connections=sum(limits.connections for limits in open_ones),
            network_bandwidth_bps=sum(bandwidths) if len(bandwidths) == len(open_ones) else None,
            network_bytes_today=await self._traffic.used(tenant),
        )

    def _locked(self, tenant: str) -> AbstractAsyncContextManager[None]:
        return self._store.lock("tenant:" + tenant, wait_s=_LOCK_WAIT_S)

    async def _tally(self, tenant: str) -> TenantTally:
        if isinstance(self._store, TalliesTenants):
            return await self._store.tally(tenant)
        return _sum(await self._records(tenant))

    async def _records(self, tenant: str) -> list[Record]:
        """Return the rows that count for a tenant."""
        return [
            record
            for record in await self._store.list()
            if record.tenant == tenant and not record.hidden and record.state is not State.LOST
        ]

    async def _check(
        self,
        tenant: str,
        quota: TenantQuota,
        need: Need,
        tally: TenantTally,
        records: Sequence[Record] | None = None,
    ) -> NetworkPolicy:
        """`records`: the rows of the tally, if they are known; only shares of a network need
        them.
        """
        most, sessions = quota.max_sessions, tally.sessions
        if most is not None and need.sessions and sessions + need.sessions > most:
            raise QuotaExceeded(
                f"tenant {tenant} has {sessions} of {most} sessions",
                hint="destroy one, or ask the operator for a larger quota",
                quota="sessions",
                limit=most,
                used=sessions,
            )
        most, memory = quota.max_memory_bytes, tally.memory_bytes
        if most is not None and need.memory_bytes and memory + need.memory_bytes > most:
            raise _bytes("memory", tenant, memory, need.memory_bytes, most)
        most = quota.max_disk_bytes
        if most is not None and need.disk_bytes:
            disk = await self._disk(tenant, tally.disk_bytes)
            if self._stored_files is not None:
                disk += await self._stored_files.usage(tenant)
            if disk + need.disk_bytes > most:
                raise _bytes("disk", tenant, disk, need.disk_bytes, most)
        if need.network.closed or not quota.limits_network:
            return need.network
        if records is None:
            records = await self._records(tenant)
        return await self._share(tenant, quota, need.network, records)

    async def _share(
        self,
        tenant: str,
        quota: TenantQuota,
        network: NetworkPolicy,
        others: Sequence[Record],
        counted: NetworkCounts | None = None,
    ) -> NetworkPolicy:
        limits = [
            self._control.recorded(record).limits for record in others if record.network != "none"
        ]
        network = shared_limits(network, tenant, quota, limits)
        used = 0
        if quota.max_network_bytes_per_day is not None:
            used = await self._traffic.used(tenant)
        return replace(network, allowance=daily_allowance(tenant, quota, used, counted))

    async def _disk(self, tenant: str, own: int) -> int:
        """Add the snapshots and named workspaces to the bytes of the others."""
        if self._snapshots is not None:
            space = await self._snapshots.space()
            own += sum(snapshot.size_bytes for snapshot in space if snapshot.tenant == tenant)
        if not self._claims.kept:
            return own
        port = self._claims.port
        for name in await port.names():
            if unscoped(name)[0] == tenant:
                # A workspace that is unreadable or already deleted has no size to count.
                with suppress(WorkspaceNotFound, WorkspaceDamaged):
                    own += (await port.get(name)).size_bytes
        return own


def reserved(record: Record, need: Need) -> Record:
    """Return the row as reserved before its workspace is known, so that its size is counted
    once.
    """
    return replace(record, limits=replace(record.limits, workspace_bytes=need.disk_bytes))


def _limits(quota: TenantQuota) -> bool:
    limits = (quota.max_sessions, quota.max_memory_bytes, quota.max_disk_bytes)
    return quota.limits_network or any(limit is not None for limit in limits)


def _sum(records: Sequence[Record]) -> TenantTally:
    own = [record.limits.workspace_bytes for record in records if record.workspace_id is None]
    return TenantTally(
        len(records), sum(record.limits.memory_bytes for record in records), sum(own)
    )


def _bytes(what: str, tenant: str, used: int, need: int, limit: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"tenant {tenant} has {used / MIB:g} of {limit / MIB:g} MB of {what}, "
        f"and {need / MIB:g} MB more were requested",
        hint="request less, destroy something, or ask the operator for a larger quota",
        quota=what,
        limit=limit,
        used=used,
    )
