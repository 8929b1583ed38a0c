"""Create, describe and destroy sandboxes, so that a crash at any point leaves something findable.

The row is written before the resource is made and removed after it is gone. The lock of an id is
held while its sandbox is made or removed, so no other process takes a half-made sandbox for
leftovers. A create that fails or is cancelled removes what it made before it raises.
"""

from __future__ import annotations

import asyncio
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.disk.cleanup import finish
from sandkasten.disk.process_identity import boot_id
from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    InternalError,
    QuotaExceeded,
    SandboxLost,
    SandkastenError,
    SessionExpired,
    SessionNotFound,
)
from sandkasten.model.commands.exec_values import DEFAULT_SHELL
from sandkasten.model.ids import SandboxId, sandbox_id
from sandkasten.model.pool.pool_kinds import Miss
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.model.sandbox.lifecycle import State, is_there
from sandkasten.model.sandbox.session_joins import JoinTerms
from sandkasten.ports import (
    UNTRACED,
    Backend,
    Candid,
    Cautions,
    Clock,
    EventSink,
    Sites,
    Store,
    Tracing,
)
from sandkasten_runtime.engine.handles import Handle, Handles
from sandkasten_runtime.engine.lifecycle.admission import new_record, not_made
from sandkasten_runtime.engine.lifecycle.planner import (
    Planner,
    SandboxPlan,
    check_joins,
    check_packages,
    session_key_of,
)
from sandkasten_runtime.engine.lifecycle.sandbox_info import described
from sandkasten_runtime.engine.owner import owner_gone
from sandkasten_runtime.engine.placement.backend_choice import Chosen, asked_of
from sandkasten_runtime.engine.pool.spare_claims import SpareClaims, send_lease
from sandkasten_runtime.engine.pool.warm_pool import REFILL_AFTER_S
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.json_bodies import to_bytes_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.journal_rows import SessionEnd
    from sandkasten.model.sandbox.ledger_record import Acquired, Record
    from sandkasten.model.sandbox.sandbox_values import CreateRequest, Info
    from sandkasten.model.sandbox.snapshot import KeptShell
    from sandkasten_runtime.engine.lifecycle.admission import Admission
    from sandkasten_runtime.engine.pool.warm_pool import WarmPool
    from sandkasten_runtime.engine.session_journal import SessionJournal
    from sandkasten_runtime.engine.storage.snapshots import Snapshots

# Creating takes milliseconds; a host that needs this long is overloaded. See also `StartsSlowly`.
CREATE_TIMEOUT_S = 30.0
# Clean-up runs after its caller was cancelled, so it must end; the reaper does the rest.
DESTROY_TIMEOUT_S = 20.0
# Long enough for one create and one destroy by the holder of the lock.
LOCK_WAIT_S = CREATE_TIMEOUT_S + DESTROY_TIMEOUT_S
LEASE_TIMEOUT_S = 10.0
# An answer takes a tenth of a millisecond; after this time creating another is faster.
CLAIM_TIMEOUT_S = 1.0
Turn = AbstractAsyncContextManager[object]
"""What a caller holds while it uses something that has few places."""


class Sandboxes:
    def __init__(
        self,
        *,
        handles: Handles,
        store: Store,
        planner: Planner,
        session_journal: SessionJournal,
        entries: Admission,
        clock: Clock,
        events: EventSink | None,
        tracing: Tracing = UNTRACED,
    ) -> None:
        self.spares = SpareClaims(handles, store, session_journal, entries, clock, events)
        self.pool: WarmPool
        """Set once by the engine: the pool needs this object."""
        self.snapshots: Snapshots
        """Set by the engine, too."""
        self._tracing = tracing
        self.entries = entries
        self._session_journal = session_journal
        self._handles = handles
        self._store = store
        self._planner = planner
        self._clock = clock
        self._events = events

    async def create(
        self,
        request: CreateRequest,
        quota: TenantQuota | None = None,
        *,
        sites: Sites | None = None,
        terms: JoinTerms | None = None,
    ) -> Info:
        """Packages of the request are installed in `sites`.

        `terms` is what the session of its key must have for the request to join it; None: every
        option that the request names.
        """
        terms = terms or JoinTerms(request.options)
        request = await self.snapshots.applied(request)
        while (info := await self._tried(request, quota, sites, terms)) is None:
            pass
        return info

    async def _tried(
        self,
        request: CreateRequest,
        quota: TenantQuota | None,
        sites: Sites | None,
        terms: JoinTerms,
    ) -> Info | None:
        """Return None if the session to join ended meanwhile: there is no image for a new one."""
        request = await self.entries.named_backends.of_session(request, session_key_of(request))
        any_image = terms.options.image is None
        # Its image, backend or packages matter to the plan.
        packages = request.options.pip_packages or request.options.npm_packages
        looks = any_image or packages or self._planner.choice.has_rules
        living = await self._living(request) if looks else None
        if living is not None:
            check_packages(living, terms)
        joins = living if any_image else None

        async def work(chosen: Chosen) -> Info | None:
            plan = await self._planner.plan(request, sites=sites, joins=joins, chosen=chosen)
            if plan.session_key is None:
                return await self._created(plan, quota)
            async with self._key_lock(plan.session_key):
                record = await self._store.find_key(plan.session_key)
                if record is not None:
                    if await self._usable(record):
                        check_joins(record, plan, terms)
                        return self.describe(record, created=False)
                    await self._bury_quietly(record.id)
                return await self._created(plan, quota) if joins is None else None

        return await self._planner.choice.on_available(request, work, living)

    @asynccontextmanager
    async def _key_lock(self, key: str) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._store.lock("key:" + key, wait_s=LOCK_WAIT_S))
            except Busy as exc:
                # A backend that `StartsSlowly` may need minutes, for example to pull an image.
                raise Busy(
                    "another request is creating or removing the session of this session_key"
                    f" (waited {LOCK_WAIT_S:g} s)",
                    hint="send the same request again: it joins the session when it is there",
                ) from exc
            yield

    async def _created(self, plan: SandboxPlan, quota: TenantQuota | None) -> Info:
        info = self.describe(await self.acquire(plan, quota), created=True)
        self.pool.refill(REFILL_AFTER_S)
        return info

    async def check(
        self,
        request: CreateRequest,
        *,
        sites: Sites | None = None,
        terms: JoinTerms | None = None,
        joins_id: SandboxId | None = None,
    ) -> None:
        """Raise what `create` would raise before it makes anything.

        `joins_id` is the session to compare with, in place of the one that the key leads to.
        """
        terms = terms or JoinTerms(request.options)
        request = await self.snapshots.applied(request)
        request = await self.entries.named_backends.of_session(request, session_key_of(request))
        living = await (self._living(request) if joins_id is None else self._usable_one(joins_id))
        if living is not None:
            check_packages(living, terms)
        joins = living if terms.options.image is None else None

        async def work(chosen: Chosen) -> None:
            plan = await self._planner.plan(request, sites=sites, joins=joins, chosen=chosen)
            if living is not None:
                check_joins(living, plan, terms)

        await self._planner.choice.on_available(request, work, living, trial=True)

    async def _living(self, request: CreateRequest) -> Record | None:
        """Return the session that a request leads to, if it lives."""
        key = session_key_of(request)
        if key is None:
            return None
        record = await self._store.find_key(key)
        return record if record is not None and await self._usable(record) else None

    async def _usable_one(self, sandbox_id: SandboxId) -> Record | None:
        record = await self._store.get(sandbox_id)
        return record if record is not None and await self._usable(record) else None

    async def acquire(self, plan: SandboxPlan, quota: TenantQuota | None = None) -> Record:
        """Return a running sandbox from the warm pool, or a new one with the reason why not."""
        claimed = await self.pool.claim(plan, quota)
        if not isinstance(claimed, Miss):
            return claimed
        return await self.make(plan, quota=quota, detail=claimed.detail)

    async def make(
        self,
        plan: SandboxPlan,
        *,
        acquired: Acquired = "cold",
        quota: TenantQuota | None = None,
        detail: str = "",
    ) -> Record:
        """Return a running sandbox with an open handle, or raise and leave nothing behind."""
        about = {
            "sandbox.image": plan.spec.image.name,
            "sandbox.backend": plan.backend.name,
            "sandbox.profile": plan.spec.profile,
        }
        with self._tracing.span("sandbox.create", about) as span:
            record = await self._make(new_record(plan, acquired, self._clock, detail), plan, quota)
            span.set({"sandbox.id": record.id})
            return record

    async def _make(
        self, record: Record, plan: SandboxPlan, quota: TenantQuota | None = None
    ) -> Record:
        async with self._store.lock(record.id, wait_s=LOCK_WAIT_S):
            record, plan = await self.entries.write(record, plan, quota, self)
            try:
                # From now on the row protects the image; check that it was not removed just before.
                await self._planner.check_present(plan)
                record = await self._start(record, plan)
                await self._session_journal.runs(record)
            except BaseException as exc:
                await finish(self._undo(record, exc))
                raise
        seconds = self._clock.boottime() - record.created_boottime
        self._emit("sandbox.created", record, seconds=seconds, source=record.acquired)
        return record

    async def make_spare(self, plan: SandboxPlan, pool_kind: str) -> Record:
        """Make a sandbox for the warm pool: for a later request, so it is in no trace."""
        return await self._make(new_record(plan, "spare", self._clock, pool_kind=pool_kind), plan)

    async def get(self, text: str) -> Info:
        record = await self._store.get(sandbox_id(text))
        if record is None:
            raise await self._handles.missing(text)
        record = await self.looked_at(record)
        info = self.describe(record, created=False)
        if record.state is not State.RUNNING:
            return info
        return replace(info, cwd=await self._handles.directory(record.id) or info.cwd)

    async def owner(self, the_id: SandboxId, turn: Turn | None = None) -> str:
        """Return the tenant of a sandbox. Raise SessionNotFound. `turn`: held while the ledger is
        read.
        """
        handle = self._handles.peek(the_id)
        if handle is not None:
            record: Record | None = handle.record
        else:
            async with turn or nullcontext():
                record = await self._store.get(the_id)
        if record is None or record.hidden:
            raise _unknown(the_id)
        return record.tenant

    async def check_owner(self, the_id: SandboxId, tenant: str) -> None:
        """Raise SessionExpired if this tenant had the sandbox; another tenant's id is unknown."""
        try:
            if await self.owner(the_id) == tenant:
                return
        except SessionNotFound:
            error = await self._session_journal.gone(the_id, tenant)
            if error is not None:
                raise error from None
        raise _unknown(the_id)

    async def destroy(self, text: str) -> None:
        """Destroy a sandbox; it is gone when this returns. A failure leaves its row.

        Raise SessionNotFound, or BackendUnavailable: then it is marked, cannot be used any more,
        and is removed later.
        """
        the_id = sandbox_id(text)
        with self._tracing.span("sandbox.destroy", {"sandbox.id": the_id}):
            await self._destroy(the_id)

    async def _destroy(self, the_id: SandboxId) -> None:
        async with self._store.lock(the_id, wait_s=LOCK_WAIT_S):
            record = await self._store.get(the_id)
            if record is None:
                raise await self._handles.missing(the_id)
            try:
                await finish(self.finish_destroy(record))
            except BackendUnavailable as exc:
                marked = "it is marked, and removed as soon as that can be done"
                raise BackendUnavailable(
                    f"sandbox {the_id} could not be removed: {exc.message}",
                    hint=f"{exc.hint}; {marked}" if exc.hint else marked,
                    **exc.details,
                ) from exc

    async def remove(self, backend: Backend, the_id: SandboxId, place: str = "") -> None:
        """Remove what a backend holds for an id, alive or not. Bounded by DESTROY_TIMEOUT_S."""
        handle = self._handles.peek(the_id)
        dying: asyncio.Future[None] | None = None
        try:
            async with self._handles.health.asking(backend.name, DESTROY_TIMEOUT_S, place):
                if handle is not None:
                    await self._handles.network_totals.ended(handle)
                    await self._handles.network_audit.ended(handle)
                try:
                    cell = handle.cell if handle is not None else await backend.attach(the_id)
                except SandboxLost:
                    dying = asyncio.ensure_future(backend.discard(the_id))
                else:
                    dying = asyncio.ensure_future(cell.destroy())
                # Yield once so that the removal starts; our connection is closed meanwhile.
                await asyncio.sleep(0)
                await self._handles.forget(the_id)
                if dying is not None:
                    await dying
        except TimeoutError as exc:
            raise BackendUnavailable(
                f"sandbox {the_id} could not be removed within {DESTROY_TIMEOUT_S:g} s",
                hint="it is marked and will be removed later; try again",
            ) from exc
        finally:
            if dying is not None and not dying.done():
                dying.cancel()

    def describe(self, record: Record, *, created: bool) -> Info:
        handle = self._handles.peek(record.id)
        used = handle.last_used if handle is not None else record.created_boottime
        cwd = handle.cwd if handle is not None else None
        return described(record, created=created, used=used, cwd=cwd, clock=self._clock)

    async def _start(self, record: Record, plan: SandboxPlan) -> Record:
        limit_s = plan.backend.capabilities.create_timeout_s or CREATE_TIMEOUT_S
        try:
            with asked_of(plan.backend.name):
                async with asyncio.timeout(limit_s):
                    cell = await plan.backend.create(record.id, plan.spec)
                    channel = await Channel.open(await cell.dial())
        except TimeoutError as exc:
            raise BackendUnavailable(
                f"backend {plan.backend.name} did not make a sandbox in {limit_s:g} s",
                hint="the host may be overloaded; run doctor",
                backend=plan.backend.name,
            ) from exc
        self._handles.health.back(plan.backend.name, record.place)
        shells = () if plan.origin is None else plan.origin.state.shells
        cwd = next((shell.cwd for shell in shells if shell.name == DEFAULT_SHELL), WORKSPACE)
        handle = Handle(record=record, backend=plan.backend, cell=cell, channel=channel, cwd=cwd)
        self._handles.keep(handle)
        # The runner ends itself, so a sandbox is removed even if every daemon is dead.
        opened = [_opened(shell) for shell in shells]
        leasing = asyncio.ensure_future(
            send_lease(channel, plan.lease, LEASE_TIMEOUT_S, shells=opened)
        )
        try:
            # The request goes out first; the row is written while the runner works.
            await asyncio.sleep(0)
            unenforced = tuple(cell.unenforced) if isinstance(cell, Candid) else ()
            limits = {entry.limit for entry in unenforced}
            unenforced += tuple(entry for entry in record.unenforced if entry.limit not in limits)
            warnings = tuple(cell.warnings) if isinstance(cell, Cautions) else ()
            running = replace(
                record,
                state=State.RUNNING,
                unenforced=unenforced,
                warnings=(*record.warnings, *warnings),
            )
            await self._store.put(running)
            await leasing
        except BaseException:
            leasing.cancel()
            raise
        handle.record = running
        return running

    async def _undo(self, record: Record, cause: BaseException) -> None:
        """Clean up after a failed create. What cannot be removed now stays marked for the
        reaper.
        """
        if record.acquired != "spare":
            self._emit("sandbox.create_failed", record, error=type(cause).__name__)
        try:
            await self.finish_destroy(record, reason=not_made(cause))
        except SandkastenError as exc:
            # The caller gets the original error; the row has what is left to do.
            self._emit("sandbox.cleanup_failed", record, error=exc.code)
            if isinstance(cause, BackendUnavailable) and self._handles.health.is_external(
                record.backend
            ):
                # An unreachable engine made nothing. If it did, the reaper finds it without an
                # owner. Rows of sandboxes that never existed must not pile up until the engine is
                # back.
                await self._session_journal.ended(record.id, "destroyed", not_made(cause))
                await self._store.drop(record.id)

    async def bury(self, record: Record) -> None:
        """Remove a dead sandbox and record how it ended. The caller holds the lock of the id."""
        if record.state is State.DESTROYING:
            await self.finish_destroy(record)
        elif record.state is State.CREATING and not owner_gone(record):
            await self.finish_destroy(record, reason="it could not be made")
        elif record.state is State.CREATING:
            end: SessionEnd = "lost" if rebooted(record) else "crashed"
            await self.finish_destroy(record, end, "the process that was creating it died")
        else:
            judged = self._handles.judge(record)
            await self.finish_destroy(record, judged.end, judged.reason)

    async def finish_destroy(
        self, record: Record, end: SessionEnd = "destroyed", reason: str = ""
    ) -> None:
        """Mark, remove, record the end, delete the row. The caller holds the lock of the id."""
        if record.state is not State.DESTROYING:
            # A full disk or an unreachable ledger must not keep a sandbox alive: without the mark,
            # a crash from here on leaves a row whose cell is dead, which the reaper also handles.
            with suppress(QuotaExceeded, InternalError, BackendUnavailable):
                await self._store.put(replace(record, state=State.DESTROYING))
        # After the mark: a backend that is not in the settings may come back.
        backend = await self._handles.remover(record)
        if self._handles.peek(record.id) is None:
            await self._handles.network_totals.ended_unattended(backend, record)
        try:
            await self.remove(backend, record.id, record.place)
        except BackendUnavailable:
            # Leftovers are removed later, by a process that no longer knows the reason of the end.
            if end != "destroyed":
                await self._session_journal.ended(record.id, end, reason)
            raise
        # Before the row is deleted, so that a reader finds one of the two.
        await self._session_journal.ended(record.id, end, reason)
        self._session_journal.removed(record, end, reason)
        await self._store.drop(record.id, record)
        self._emit("sandbox.destroyed", record)

    async def destroy_quietly(self, the_id: SandboxId) -> None:
        """Make sure that a sandbox is gone and nothing of it is open here."""
        try:
            await self.destroy(the_id)
        except (SessionNotFound, SessionExpired):
            await self._handles.forget(the_id)

    async def _bury_quietly(self, the_id: SandboxId) -> None:
        async with self._store.lock(the_id, wait_s=LOCK_WAIT_S):
            record = await self._store.get(the_id)
            if record is not None:
                await finish(self.bury(record))
        await self._handles.forget(the_id)

    async def _usable(self, record: Record) -> bool:
        return is_there(record.state) and await self._handles.alive(record)

    async def looked_at(self, record: Record) -> Record:
        """Return the record with its current state, not the one last recorded."""
        if not is_there(record.state):
            return record
        try:
            alive = await self._handles.alive(record)
        except (BackendUnavailable, Busy):
            if not self._handles.health.is_external(record.backend):
                return record
            unsure = f"backend {record.backend} does not answer: this is what was last known"
            return replace(record, warnings=(*record.warnings, unsure))
        return record if alive else replace(record, state=State.LOST)

    def _emit(self, event: str, record: Record, **more: str | float) -> None:
        if self._events is not None:
            fields: dict[str, str | int | float | bool | None] = {
                "sandbox": record.id,
                "backend": record.backend,
                "image": record.image,
                **more,
            }
            self._events.emit(event, fields)


def _opened(shell: KeptShell) -> dict[str, object]:
    """Return a shell of a snapshot as the runner opens it."""
    return {
        "name": shell.name,
        "cwd": to_bytes_json(shell.cwd),
        "env": {name: to_bytes_json(value) for name, value in shell.env.items()},
        "unset": shell.unset,
    }


def _unknown(the_id: str) -> SessionNotFound:
    return SessionNotFound(
        f"no sandbox has the id {the_id}", hint="it may have been destroyed; list with ls"
    )


def rebooted(record: Record) -> bool:
    return record.boot_id != boot_id()
