"""Change a living sandbox: its timeouts, its labels and its network.

The runner holds the lease and receives changes first, then the egress process its rules. If one of
them or the row fails, what was changed is set back, so they never disagree. Invalid requests are
refused before anything changes. The lock of the id is held.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.errors import Busy, InvalidRequest, PolicyDenied, SandkastenError
from sandkasten.model.environment import checked_labels
from sandkasten.model.ids import sandbox_id
from sandkasten.model.runs.session_key import parse_session_key
from sandkasten.model.sandbox.inspection import Inspection, is_inspected
from sandkasten.model.sandbox.lifecycle import is_there
from sandkasten.model.sandbox.network_policy import changed_network
from sandkasten.model.sandbox.policy import checked_duration

if TYPE_CHECKING:
    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten.model.sandbox.policy import Policy
    from sandkasten.model.sandbox.sandbox_values import UpdateRequest
    from sandkasten.ports import Clock, EventSink, Store
    from sandkasten_runtime.engine.handles import Handle, Handles
    from sandkasten_runtime.engine.lifecycle.tenant_quotas import TenantQuotas
    from sandkasten_runtime.engine.network_control import NetworkControl
    from sandkasten_runtime.engine.session_journal import SessionJournal
    from sandkasten_runtime.engine.storage.tenant_secrets import TenantSecrets
    from sandkasten_runtime.wire.channel import Channel

_LOCK_WAIT_S = 30.0
_LEASE_TIMEOUT_S = 10.0


class SandboxUpdates:
    def __init__(
        self,
        *,
        handles: Handles,
        store: Store,
        session_journal: SessionJournal,
        policy: Policy,
        clock: Clock,
        events: EventSink | None,
        control: NetworkControl,
        secrets: TenantSecrets,
        quotas: TenantQuotas,
    ) -> None:
        self._trail = handles.trail
        self._quotas = quotas
        self._secrets = secrets
        self._control = control
        self._handles = handles
        self._store = store
        self._session_journal = session_journal
        self._policy = policy
        self._clock = clock
        self._events = events

    async def update(
        self, text: str, request: UpdateRequest, quota: TenantQuota | None = None
    ) -> Record:
        the_id = sandbox_id(text)
        handle = self._handles.peek(the_id)
        tenant = "" if handle is None else handle.record.tenant
        with self._trail.deciding("session.update", tenant, the_id):
            return await self._update(the_id, request, quota)

    async def _update(
        self, the_id: SandboxId, request: UpdateRequest, quota: TenantQuota | None
    ) -> Record:
        network = self._network(request)
        labels = None if request.labels is None else checked_labels(request.labels)
        async with self._store.lock(the_id, wait_s=_LOCK_WAIT_S):
            handle = await self._handles.get(the_id)
            await self._handles.refresh(handle)
            old = handle.record
            if not is_there(old.state):
                raise Busy(f"sandbox {the_id} is {old.state.value}", hint="try again in a moment")
            new = self._leased(old, request)
            if labels is not None:
                new = replace(new, labels=labels)
            if network is None and new == old:
                return old
            async with self._opened(handle, network, quota) as granted:
                new = await self._apply(handle, new, granted, quota)
            if new == old:
                return old
            if labels is not None:
                await self._session_journal.changed(new)
        if network is not None:
            self._trail.network_allowed(new)
        self._emit("sandbox.updated", new)
        return new

    def _opened(
        self, handle: Handle, network: NetworkPolicy | None, quota: TenantQuota | None
    ) -> AbstractAsyncContextManager[NetworkPolicy | None]:
        if network is None:
            return nullcontext()
        return self._quotas.opened(handle, network, quota)

    async def _apply(
        self,
        handle: Handle,
        new: Record,
        network: NetworkPolicy | None,
        quota: TenantQuota | None,
    ) -> Record:
        old = handle.record
        if network is not None:
            daily = None if quota is None else quota.max_network_bytes_per_day
            new = replace(new, network=network.public(), network_bytes_per_day=daily)
        # Raises if the sandbox is paused: its runner does not answer.
        channel = None if _lease(new) == _lease(old) else await self._handles.channel(handle)
        try:
            if channel is not None:
                await self._send_lease(channel, new)
            if network is not None:
                await self._open(handle, network, old)
            if new != old:
                await self._store.put(new)
        except BaseException:
            if channel is not None:
                with suppress(SandkastenError):
                    await self._send_lease(channel, old)
            if network is not None:
                with suppress(SandkastenError):
                    await self._open(handle, self._control.recorded(old), new)
            raise
        handle.record = new
        return new

    def _network(self, request: UpdateRequest) -> NetworkPolicy | None:
        if request.network is None:
            return None
        operator = request.key_id is None
        return changed_network(request.network, self._policy.network, operator=operator)

    def _leased(self, record: Record, request: UpdateRequest) -> Record:
        """Return the row with the requested times; times that are not named stay."""
        lifetime = record.lifetime_s
        if request.lifetime_seconds is not None:
            lifetime = checked_duration("lifetime_seconds", request.lifetime_seconds, self._policy)
            if lifetime > record.lifetime_s and request.key_id is not None and _of_run(record):
                raise PolicyDenied(
                    f"lifetime_seconds of a session of a run must be at most "
                    f"{record.lifetime_s:g}, got {lifetime:g}",
                    hint="session_max_retain_seconds bounds how long it is kept after its run",
                    rule="session_max_retain_seconds",
                )
            age_s = self._clock.boottime() - record.created_boottime
            if lifetime <= age_s:
                raise InvalidRequest(
                    f"lifetime_seconds counts from creation, {age_s:.0f} s ago",
                    hint="use a larger value, or destroy the sandbox",
                    field="lifetime_seconds",
                )
        requested = [
            checked_duration(name, value, self._policy)
            for name, value in (
                ("ttl_seconds", request.ttl_seconds),
                ("idle_timeout_seconds", request.idle_timeout_seconds),
            )
            if value is not None
        ]
        idle = min(requested) if requested else record.idle_timeout_s
        return replace(record, idle_timeout_s=min(idle, lifetime), lifetime_s=lifetime)

    async def _open(self, handle: Handle, network: NetworkPolicy, before: Record) -> None:
        inspection = await self._secrets.inspection(network, before.tenant)
        if inspection is None and is_inspected(before.network):
            inspection = Inspection(all=False)
        await self._control.change(handle, network, inspection)

    async def _send_lease(self, channel: Channel, record: Record) -> None:
        left_s = record.created_boottime + record.lifetime_s - self._clock.boottime()
        fields = {
            "idle_ms": int(record.idle_timeout_s * 1000),
            "lifetime_ms": max(1, int(left_s * 1000)),
        }
        await channel.call("lease", fields, timeout_s=_LEASE_TIMEOUT_S)

    def _emit(self, event: str, record: Record) -> None:
        if self._events is not None:
            self._events.emit(event, {"sandbox": record.id, "backend": record.backend})


def _of_run(record: Record) -> bool:
    """Return whether an agent or a workflow opened it; its run decides how long it is kept."""
    try:
        parse_session_key(record.session_key or "")
    except InvalidRequest:
        return False
    return True


def _lease(record: Record) -> tuple[float, float]:
    return record.idle_timeout_s, record.lifetime_s
