"""Claim a pooled sandbox for a request, renew its lease until then, or adopt an abandoned one.

The row of a sandbox names its owner only after everything of the request was applied, so no process
can use it before. Which sandboxes are kept ready, and how many, only `warm_pool` knows. A claim
that fails returns None, and the caller creates a new sandbox.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.disk.process_identity import boot_id, this_process
from sandkasten.errors import SandkastenError
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.session_joins import variables
from sandkasten.ports import Clock, EventSink, Networked, Resizes, Store, backend_part
from sandkasten_runtime.engine.handles import Handle, Handles
from sandkasten_runtime.engine.owner import owner_gone
from sandkasten_runtime.engine.placement.places import located
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.frame_codec import LEASE_ENV
from sandkasten_runtime.wire.json_bodies import to_bytes_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.limits import Limits
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten.model.sandbox.policy import Lease
    from sandkasten.ports import Backend, Cell
    from sandkasten_runtime.engine.lifecycle.admission import Admission
    from sandkasten_runtime.engine.lifecycle.planner import SandboxPlan
    from sandkasten_runtime.engine.session_journal import SessionJournal

# An answer takes a tenth of a millisecond; after this time creating another is faster.
CLAIM_TIMEOUT_S = 1.0


class SpareClaims:
    def __init__(
        self,
        handles: Handles,
        store: Store,
        session_journal: SessionJournal,
        entries: Admission,
        clock: Clock,
        events: EventSink | None,
    ) -> None:
        self._handles = handles
        self._store = store
        self._session_journal = session_journal
        self._entries = entries
        self._clock = clock
        self._events = events

    def admitted(
        self, plan: SandboxPlan, quota: TenantQuota | None
    ) -> AbstractAsyncContextManager[NetworkPolicy]:
        """See `Admission.admitted`."""
        return self._entries.admitted(plan, quota)

    def answers(self, spare: Record) -> bool:
        """Return whether a pooled sandbox can be claimed as far as this process knows."""
        handle = self._handles.peek(spare.id)
        channel = None if handle is None else handle.live
        return channel is not None and LEASE_ENV in channel.hello.features

    async def renew(self, spare: Record, plan: SandboxPlan) -> None:
        """Renew the lease of a pooled sandbox."""
        handle = self._handles.peek(spare.id)
        if handle is not None and handle.live is not None:
            with suppress(SandkastenError):
                await send_lease(handle.live, plan.lease, CLAIM_TIMEOUT_S)

    async def left(self) -> Sequence[Record]:
        """Return the running pooled sandboxes of processes that have ended."""
        return [
            record
            for record in await self._store.list()
            if record.acquired == "spare"
            and record.state is State.RUNNING
            and record.boot_id == boot_id()
            and owner_gone(record)
        ]

    async def adopt(self, spare: Record, plan: SandboxPlan) -> Record | None:
        """Make the pooled sandbox of an earlier process one of this process; None if it is
        not usable.
        """
        owner = this_process()
        async with self._store.lock(spare.id, wait_s=0):
            row = await self._store.get(spare.id)
            if row is None or row.state is not State.RUNNING or row.acquired != "spare":
                return None
            async with asyncio.timeout(CLAIM_TIMEOUT_S):
                backend = await located(plan.backend, row)
                cell = await backend.attach(spare.id)
                channel = await Channel.open(await cell.dial())
                try:
                    await send_lease(channel, plan.lease, CLAIM_TIMEOUT_S)
                except BaseException:
                    await channel.aclose()
                    raise
            row = replace(row, owner_pid=owner.pid, owner_start=owner.start)
            handle = Handle(
                record=row, backend=plan.backend, cell=cell, channel=channel, cwd=WORKSPACE
            )
            self._handles.keep(handle)
            if not self.answers(row):
                await self._handles.forget(row.id)
                return None
            await self._store.put(row)
        self._emit("sandbox.spare_adopted", row)
        return row

    async def claim(
        self, spare: Record, plan: SandboxPlan, quota: TenantQuota | None
    ) -> Record | None:
        """Return the pooled sandbox with everything that the plan asks for; None if it cannot be
        used, for whatever reason.
        """
        handle = self._handles.peek(spare.id)
        if handle is None or handle.live is None:
            return None
        began = self._clock.boottime()
        works = apply_request(
            spare.id, handle.backend, handle.cell, handle.live, spare.limits, plan.spec, plan.lease
        )
        journaled: asyncio.Future[None] | None = None
        try:
            async with self._store.lock(spare.id, wait_s=0):
                row = await self._store.get(spare.id)
                if row is None or row.state is not State.RUNNING or row.acquired != "spare":
                    return None
                claimed = _claimed(row, plan, quota, self._clock)
                beginning = self._session_journal.begin(claimed, plan.key_id)
                journaled = asyncio.ensure_future(beginning)
                for work in (*works, journaled):
                    await work
                await self._store.put(claimed)
        except (SandkastenError, TimeoutError):
            # Whatever the reason: a new sandbox will work, or creating it reports the cause better.
            return None
        finally:
            for work in works:
                work.cancel()
                work.add_done_callback(_seen)
            if journaled is not None and not journaled.done():
                # The removal of this sandbox ends its journal row, which must be there by then.
                journaled.add_done_callback(_seen)
                await asyncio.wait({journaled})
            self._session_journal.making.discard(spare.id)
        handle.record = claimed
        self._handles.keep(handle)
        self._emit("sandbox.claimed", claimed, seconds=self._clock.boottime() - began)
        return claimed

    def _emit(self, event: str, record: Record, **more: str | float) -> None:
        if self._events is not None:
            about = {"sandbox": record.id, "backend": record.backend, "image": record.image}
            self._events.emit(event, {**about, **more})


def apply_request(
    the_id: SandboxId,
    backend: Backend,
    cell: Cell,
    channel: Channel,
    had: Limits,
    spec: CellSpec,
    lease: Lease,
) -> list[asyncio.Future[None]]:
    """Begin to apply lease, environment, limits and network rules to a pooled sandbox.

    `had` are the limits that it was made with.
    """
    leasing = send_lease(channel, lease, CLAIM_TIMEOUT_S, spec.env)
    works: list[asyncio.Future[None]] = [asyncio.ensure_future(leasing)]
    if backend.capabilities.resizes and spec.limits != had:
        works.append(asyncio.ensure_future(_resize(backend, the_id, spec.limits)))
    if not spec.network.closed and isinstance(cell, Networked):
        changing = cell.change_network(spec.network, spec.ceiling.reachable)
        works.append(asyncio.ensure_future(changing))
    return works


async def _resize(backend: Backend, the_id: SandboxId, limits: Limits) -> None:
    await (await backend_part(backend, Resizes)).resize(the_id, limits)


async def send_lease(
    channel: Channel,
    lease: Lease,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    shells: Sequence[Mapping[str, object]] = (),
) -> None:
    fields: dict[str, object] = {
        "idle_ms": int(lease.idle_timeout_s * 1000),
        "lifetime_ms": int(lease.lifetime_s * 1000),
    }
    if env is not None:
        fields["env"] = {name: to_bytes_json(value) for name, value in env.items()}
    if shells:
        fields["shells"] = shells
    await channel.call("lease", fields, timeout_s=timeout_s)


def _claimed(row: Record, plan: SandboxPlan, quota: TenantQuota | None, clock: Clock) -> Record:
    """Return the row of a pooled sandbox as that of the request."""
    env = variables(row.id, plan.env)
    return replace(
        row,
        acquired="pool",
        pool_kind="",
        created_at=clock.now(),
        created_boottime=clock.boottime(),
        idle_timeout_s=plan.lease.idle_timeout_s,
        lifetime_s=plan.lease.lifetime_s,
        session_key=plan.session_key,
        limits=plan.spec.limits,
        labels=plan.labels,
        env_names=env.names,
        env_digest=env.digest,
        hostname=plan.spec.hostname,
        pip_packages=plan.packages.pip,
        npm_packages=plan.packages.npm,
        warnings=(*plan.warnings, *row.warnings),
        mounts=plan.mounts,
        tenant=plan.tenant,
        network=plan.spec.network.public(),
        network_bytes_per_day=None if quota is None else quota.max_network_bytes_per_day,
    )


def _seen(task: asyncio.Future[None]) -> None:
    """Read the failure, so that asyncio does not log it: it was handled, or no longer matters."""
    if not task.cancelled():
        task.exception()
