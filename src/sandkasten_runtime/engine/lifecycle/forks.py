"""Forks: new sandboxes that start with the files of a living one, all from one moment.

The source is stopped once, while its files are copied; the copy belongs to the fork and is removed
when all have started. Each of them is created as any other, and its failure leaves the others. What
no client learns of is removed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.disk.cleanup import finish
from sandkasten.errors import InvalidRequest, SandkastenError
from sandkasten.model.environment import checked_labels
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.policy import lease_for
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import MAX_FORKS, CreateRequest, Forked
from sandkasten.model.sandbox.snapshot import completed_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.policy import Policy
    from sandkasten.model.sandbox.sandbox_values import ForkRequest, Info
    from sandkasten.model.sandbox.snapshot import StoredSnapshot
    from sandkasten.ports import EventSink, Sites
    from sandkasten_runtime.engine.audit_trail import AuditTrail
    from sandkasten_runtime.engine.lifecycle.sandboxes import Sandboxes
    from sandkasten_runtime.engine.storage.snapshots import Snapshots

# Each copies a file system; more of them at once would only wait for the same disk.
_AT_ONCE: Final = 4


class Forks:
    def __init__(
        self,
        snapshots: Snapshots,
        sandboxes: Sandboxes,
        sites: Sites,
        policy: Policy,
        trail: AuditTrail,
        events: EventSink | None,
    ) -> None:
        self._snapshots = snapshots
        self._sandboxes = sandboxes
        self._sites = sites
        self._policy = policy
        self._trail = trail
        self._events = events

    async def fork(self, text: str, request: ForkRequest, quota: TenantQuota | None) -> Forked:
        """Raise what concerns the source or every copy; what concerns one copy is its result."""
        named = self._named(request)
        ids: list[SandboxId] = []
        try:
            async with self._snapshots.cut(text) as (source, origin):
                wanted = CreateRequest(
                    _completed(named, source, origin),
                    tenant=source.tenant,
                    key_id=request.key_id,
                    origin=origin,
                )
                results = await self._created(wanted, request.count, quota, ids)
        except BaseException:
            await finish(self._remove(ids))
            raise
        if self._events is not None:
            self._events.emit(
                "sandbox.forked",
                {
                    "sandbox": source.id,
                    "created": len(ids),
                    "failed": len(results) - len(ids),
                    "frozen_ms": origin.frozen_ms,
                },
            )
        return Forked(tuple(results), origin.not_kept)

    def _named(self, request: ForkRequest) -> SandboxOptions:
        """Return the options that the request names. Raise InvalidRequest."""
        if isinstance(request.count, bool) or not 1 <= request.count <= MAX_FORKS:
            raise InvalidRequest(
                f"count must be 1 to {MAX_FORKS}, got {request.count}",
                hint="fork again for more copies, or take a snapshot and create from it",
                field="count",
                limit=MAX_FORKS,
            )
        named = SandboxOptions(
            ttl_seconds=request.ttl_seconds,
            idle_timeout_seconds=request.idle_timeout_seconds,
            lifetime_seconds=request.lifetime_seconds,
            labels=checked_labels(request.labels or {}),
            network=request.network,
        )
        lease_for(named, self._policy)
        return named

    async def _created(
        self,
        wanted: CreateRequest,
        count: int,
        quota: TenantQuota | None,
        ids: list[SandboxId],
    ) -> Sequence[Info | SandkastenError]:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def create() -> Info | SandkastenError:
            async with gate:
                try:
                    with self._trail.deciding("session.fork", wanted.tenant):
                        info = await self._sandboxes.create(wanted, quota, sites=self._sites)
                except SandkastenError as exc:
                    return exc
                ids.append(SandboxId(info.id))
                return info

        async with asyncio.TaskGroup() as group:
            creating = [group.create_task(create()) for _ in range(count)]
        return [task.result() for task in creating]

    async def _remove(self, ids: Sequence[SandboxId]) -> None:
        await asyncio.gather(
            *(self._sandboxes.destroy_quietly(the_id) for the_id in ids), return_exceptions=True
        )


def _completed(named: SandboxOptions, source: Record, origin: StoredSnapshot) -> SandboxOptions:
    """Return the options of a copy: what the request names, and otherwise what the source has."""
    has_idle = named.ttl_seconds is not None or named.idle_timeout_seconds is not None
    return replace(
        completed_options(named, origin),
        ttl_seconds=named.ttl_seconds if has_idle else source.idle_timeout_s,
        lifetime_seconds=source.lifetime_s
        if named.lifetime_seconds is None
        else named.lifetime_seconds,
        # The copy that they start from is gone soon.
        snapshot=source.snapshot,
    )
