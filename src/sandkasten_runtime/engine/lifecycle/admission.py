"""Admission: write the first rows of a sandbox, journal then ledger, within the tenant's quota.

Nothing is made here except a named workspace. A failure undoes what was written, and the journal
row ends with the reason.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.disk.cleanup import finish
from sandkasten.disk.process_identity import this_process
from sandkasten.errors import InternalError, QuotaExceeded, SandkastenError
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.sandbox.ledger_record import Record
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.session_joins import variables
from sandkasten_runtime.engine.lifecycle.tenant_quotas import Need, reserved

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.sandbox.ledger_record import Acquired
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten.model.sandbox.workspace import WorkspaceRequest
    from sandkasten.ports import Clock, Store
    from sandkasten_runtime.engine.lifecycle.planner import SandboxPlan
    from sandkasten_runtime.engine.lifecycle.tenant_quotas import TenantQuotas
    from sandkasten_runtime.engine.lifecycle.workspace_claims import WorkspaceClaims
    from sandkasten_runtime.engine.lifecycle.workspace_loans import Remover
    from sandkasten_runtime.engine.placement.named_backend_choice import NamedBackendChoice
    from sandkasten_runtime.engine.session_journal import SessionJournal


# No other process can know the id of a new sandbox yet.
_LOCK_WAIT_S = 10.0


class Admission:
    def __init__(
        self,
        store: Store,
        claims: WorkspaceClaims,
        session_journal: SessionJournal,
        quotas: TenantQuotas,
        named_backends: NamedBackendChoice,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self.named_backends = named_backends
        self._store = store
        self._claims = claims
        self._session_journal = session_journal
        self._quotas = quotas

    async def write(
        self, record: Record, plan: SandboxPlan, quota: TenantQuota | None, remover: Remover
    ) -> tuple[Record, SandboxPlan]:
        """The row is written when this returns, and a named workspace is this sandbox's."""
        async with self.named_backends.admitted(record):
            return await self._write(record, plan, quota, remover)

    async def _write(
        self, record: Record, plan: SandboxPlan, quota: TenantQuota | None, remover: Remover
    ) -> tuple[Record, SandboxPlan]:
        if record.acquired == "spare":
            await self._store.put(record)
            return record, plan
        limited = quota is not None
        need = await self._quotas.need(plan) if limited else Need()
        async with self._quotas.admitted(plan.tenant, quota, need) as network:
            if quota is not None:
                plan = replace(plan, spec=replace(plan.spec, network=network))
                record = replace(
                    record,
                    network=network.public(),
                    network_bytes_per_day=quota.max_network_bytes_per_day,
                )
            wished = None if plan.workspace is None else plan.workspace.name
            await self._session_journal.begin(replace(record, workspace_id=wished), plan.key_id)
            try:
                if plan.workspace is None:
                    await self._store.put(record)
                elif limited:
                    await self._store.put(reserved(record, need))
            except BaseException as exc:
                await finish(self._take_back(record, exc))
                raise
        if plan.workspace is None:
            return record, plan
        try:
            make = not limited or need.disk_bytes > 0
            return await self._claimed(record, plan, plan.workspace, remover, make=make)
        except BaseException as exc:
            await finish(self._take_back(record, exc))
            raise

    @asynccontextmanager
    async def admitted(
        self, plan: SandboxPlan, quota: TenantQuota | None
    ) -> AsyncIterator[NetworkPolicy]:
        """Check the quota of a request that needs no workspace, and yield its network with its
        share. The caller writes its row inside the block.
        """
        need = Need(network=plan.spec.network) if quota is None else await self._quotas.need(plan)
        async with self._quotas.admitted(plan.tenant, quota, need) as network:
            yield network

    @asynccontextmanager
    async def recorded(
        self, plan: SandboxPlan, quota: TenantQuota | None, remover: Remover
    ) -> AsyncIterator[tuple[Record, SandboxPlan]]:
        """Write the rows of a run that no backend keeps, and remove them after the block.

        The row says `creating` all the time, and its lock is held: for other processes it is a
        sandbox that is being made. If this process dies, a reaper finds nothing but the row.
        """
        record = new_record(plan, "cold", self._clock, f"backend {plan.backend.name} has no pool")
        async with self._store.lock(record.id, wait_s=_LOCK_WAIT_S):
            record, plan = await self.write(record, plan, quota, remover)
            reason = ""
            try:
                await self._session_journal.runs(record)
                yield record, plan
            except BaseException as exc:
                reason = not_made(exc)
                raise
            finally:
                await finish(self._ended(record, reason))

    async def _ended(self, record: Record, reason: str) -> None:
        await self._session_journal.ended(record.id, "destroyed", reason)
        self._session_journal.removed(record, "destroyed", reason)
        with suppress(QuotaExceeded, InternalError):
            await self._store.drop(record.id, record)

    async def _claimed(
        self,
        record: Record,
        plan: SandboxPlan,
        requested: WorkspaceRequest,
        remover: Remover,
        *,
        make: bool,
    ) -> tuple[Record, SandboxPlan]:
        async with self._claims.claimed(requested, plan.backend, remover, make=make) as claim:
            limits = replace(plan.spec.limits, workspace_bytes=claim.stored.size_bytes)
            record = replace(
                record,
                limits=limits,
                workspace_id=requested.name,
                workspace_shared=requested.shared,
                unenforced=claim.unenforced,
            )
            await self._store.put(record)
        spec = replace(plan.spec, limits=limits, workspace=claim.volume)
        return record, replace(plan, spec=spec)

    async def _take_back(self, record: Record, cause: BaseException) -> None:
        """Remove the row. Nothing was made yet, so the row is all there is to remove."""
        with suppress(QuotaExceeded, InternalError):
            await self._store.drop(record.id, record)
        await self._session_journal.ended(record.id, "destroyed", not_made(cause))


def not_made(cause: BaseException) -> str:
    """Return the journal's reason for a sandbox that never ran."""
    what = cause.message if isinstance(cause, SandkastenError) else type(cause).__name__
    return f"it could not be made: {what}"


def new_record(
    plan: SandboxPlan, acquired: Acquired, clock: Clock, detail: str = "", pool_kind: str = ""
) -> Record:
    """Return the first row of a sandbox that does not exist yet."""
    owner, the_id = this_process(), new_sandbox_id()
    env = variables(the_id, plan.env)
    return Record(
        id=the_id,
        state=State.CREATING,
        backend=plan.backend.name,
        image=plan.spec.image.name,
        image_id=plan.spec.image.id if plan.spec.image.kind == "layers" else "",
        profile=plan.spec.profile,
        limits=plan.spec.limits,
        created_at=clock.now(),
        created_boottime=clock.boottime(),
        boot_id=owner.boot_id,
        idle_timeout_s=plan.lease.idle_timeout_s,
        lifetime_s=plan.lease.lifetime_s,
        session_key=plan.session_key,
        labels=plan.labels,
        env_names=env.names,
        env_digest=env.digest,
        hostname=plan.spec.hostname,
        pip_packages=plan.packages.pip,
        npm_packages=plan.packages.npm,
        owner_pid=owner.pid,
        owner_start=owner.start,
        warnings=plan.warnings,
        acquired=acquired,
        acquire_detail=detail,
        pool_kind=pool_kind,
        snapshot=plan.snapshot,
        mounts=plan.mounts,
        place=plan.spec.place,
        network=plan.spec.network.public(),
        gpus=None if plan.spec.gpus is None else str(plan.spec.gpus),
        # A warm-pool sandbox has no owner until it is claimed; the operator's row keeps it out
        # of every tenant's sum.
        tenant=DEFAULT_TENANT if acquired == "spare" else plan.tenant,
    )
