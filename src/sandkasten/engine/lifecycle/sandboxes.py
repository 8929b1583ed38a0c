"""Create, describe and destroy sandboxes, so that a crash at any point leaves something findable.

The row is written before the resource is made and dropped after it is gone; the lock of an
id is held while its sandbox is made or removed, so nobody takes a half-made one for litter.
A create that fails or is cancelled removes what it began before it lets the error through.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.disk.process_identity import boot_id, this_process
from sandkasten.engine.cleanup import finish
from sandkasten.engine.handles import Handle, Handles
from sandkasten.engine.lifecycle.admission import not_made
from sandkasten.engine.lifecycle.planner import Plan, Planner, check_same_kind
from sandkasten.engine.lifecycle.sandbox_info import described
from sandkasten.engine.lifecycle.tenant_quotas import UNLIMITED, Allowance
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
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.ids import SandboxId, new_sandbox_id, sandbox_id
from sandkasten.model.sandbox.isolation_levels import has_engine
from sandkasten.model.sandbox.ledger_record import Acquired, Record
from sandkasten.model.sandbox.lifecycle import State, is_there
from sandkasten.ports import Backend, Candid, Clock, Discards, EventSink, Sites, Store
from sandkasten.wire.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.engine.lifecycle.admission import Entries
    from sandkasten.engine.session_journal import Chronicle
    from sandkasten.model.journal_rows import SessionEnd
    from sandkasten.model.sandbox.sandbox_requests import CreateRequest, Info

# Making a place takes milliseconds; a host so busy that it needs this long is not usable.
CREATE_TIMEOUT_S = 30.0
# Clean-up runs after its caller was cancelled, so it must end; the reaper does the rest.
DESTROY_TIMEOUT_S = 20.0
# Long enough for one create and one destroy of whoever holds the lock.
LOCK_WAIT_S = CREATE_TIMEOUT_S + DESTROY_TIMEOUT_S
LEASE_TIMEOUT_S = 10.0
# An answer takes a tenth of a millisecond; later than this, making another is quicker.
CLAIM_TIMEOUT_S = 1.0
_CHECKS_AT_ONCE = 16


class Sandboxes:
    def __init__(
        self,
        *,
        handles: Handles,
        store: Store,
        planner: Planner,
        chronicle: Chronicle,
        entries: Entries,
        clock: Clock,
        events: EventSink | None,
    ) -> None:
        self._entries = entries
        self._chronicle = chronicle
        self._handles = handles
        self._store = store
        self._planner = planner
        self._clock = clock
        self._events = events

    async def create(
        self,
        request: CreateRequest,
        allowance: Allowance = UNLIMITED,
        *,
        sites: Sites | None = None,
    ) -> Info:
        """Packages of the request are installed in `sites`."""
        plan = await self._planner.plan(request, sites=sites)
        if plan.session_key is None:
            return self.describe(await self.make(plan, allowance=allowance), created=True)
        async with self._store.lock("key:" + plan.session_key, wait_s=LOCK_WAIT_S):
            found = await self._store.find_key(plan.session_key)
            if found is not None:
                if await self._usable(found):
                    check_same_kind(found, request, plan)
                    return self.describe(found, created=False)
                await self._bury_quietly(found.id)
            return self.describe(await self.make(plan, allowance=allowance), created=True)

    async def make(
        self, plan: Plan, *, acquired: Acquired = "cold", allowance: Allowance = UNLIMITED
    ) -> Record:
        """A running sandbox with its handle open, or an error and nothing left behind."""
        owner = this_process()
        record = Record(
            id=new_sandbox_id(),
            state=State.CREATING,
            backend=plan.backend.name,
            image=plan.spec.image.name,
            image_id=plan.spec.image.id if plan.spec.image.kind == "layers" else "",
            profile=plan.spec.profile,
            limits=plan.spec.limits,
            created_at=self._clock.now(),
            created_boottime=self._clock.boottime(),
            boot_id=owner.boot_id,
            idle_timeout_s=plan.lease.idle_timeout_s,
            lifetime_s=plan.lease.lifetime_s,
            session_key=plan.session_key,
            labels=plan.labels,
            env_names=plan.env_names,
            owner_pid=owner.pid,
            owner_start=owner.start,
            warnings=plan.warnings,
            acquired=acquired,
            mounts=plan.mounts,
            # Nobody's until it is claimed; the operator's row keeps it out of every tenant's sum.
            tenant=DEFAULT_TENANT if acquired == "spare" else plan.tenant,
        )
        async with self._store.lock(record.id, wait_s=LOCK_WAIT_S):
            record, plan = await self._entries.write(record, plan, allowance, self)
            try:
                # The row keeps the image from now on; it must not have gone just before.
                await self._planner.check_present(plan)
                record = await self._start(record, plan)
                await self._chronicle.runs(record)
            except BaseException as exc:
                await finish(self._undo(record, exc))
                raise
        seconds = self._clock.boottime() - record.created_boottime
        self._emit("sandbox.created", record, seconds=seconds, source=acquired)
        return record

    async def claim(self, spare: Record, plan: Plan) -> Record | None:
        """The spare as what the plan asks for; None when it has died or somebody removed it."""
        handle = self._handles.peek(spare.id)
        if handle is None or handle.channel is None or handle.channel.closed:
            return None
        began = self._clock.boottime()
        leasing = asyncio.ensure_future(_lease(handle.channel, plan, CLAIM_TIMEOUT_S))
        leasing.add_done_callback(_seen)
        try:
            # The request goes out first; its answer says that the runner lives and will.
            await asyncio.sleep(0)
            async with self._store.lock(spare.id, wait_s=0):
                row = await self._store.get(spare.id)
                if row is None or row.state is not State.RUNNING:
                    return None
                claimed = replace(
                    row,
                    acquired="pool",
                    created_at=self._clock.now(),
                    created_boottime=self._clock.boottime(),
                    idle_timeout_s=plan.lease.idle_timeout_s,
                    lifetime_s=plan.lease.lifetime_s,
                    labels=plan.labels,
                    env_names=plan.env_names,
                    warnings=plan.warnings,
                    tenant=plan.tenant,
                )
                await self._chronicle.begin(claimed, plan.key_id)
                await self._store.put(claimed)
            await leasing
            await self._chronicle.runs(claimed)
        except SandkastenError:
            # Whatever it is: a sandbox of its own will do, or say better what is wrong.
            return None
        finally:
            leasing.cancel()
        handle.record = claimed
        self._handles.keep(handle)
        self._emit("sandbox.claimed", claimed, seconds=self._clock.boottime() - began)
        return claimed

    async def get(self, text: str) -> Info:
        record = await self._store.get(sandbox_id(text))
        if record is None:
            raise await self._handles.missing(text)
        return self.describe(await self._looked_at(record), created=False)

    async def owner(self, the_id: SandboxId) -> str:
        """Whose it is; SessionNotFound when there is none."""
        handle = self._handles.peek(the_id)
        record = handle.record if handle is not None else await self._store.get(the_id)
        if record is None or record.hidden:
            raise _unknown(the_id)
        return record.tenant

    async def check_owner(self, the_id: SandboxId, tenant: str) -> None:
        """SessionExpired when this tenant had it; another's answers like an unknown one."""
        try:
            if await self.owner(the_id) == tenant:
                return
        except SessionNotFound:
            gone = await self._chronicle.gone(the_id, tenant)
            if gone is not None:
                raise gone from None
        raise _unknown(the_id)

    async def census(self) -> dict[tuple[str, str], int]:
        """How many rows are in each state and backend, without a look at the sandboxes."""
        return Counter(
            ("spare" if row.acquired == "spare" else row.state.value, row.backend)
            for row in await self._store.list()
        )

    async def list(self, *, all: bool = False, tenant: str | None = None) -> Sequence[Info]:
        """Everybody's sandboxes; with `all` also what is kept ready and belongs to nobody yet."""
        gate = asyncio.Semaphore(_CHECKS_AT_ONCE)

        async def one(record: Record) -> Record:
            async with gate:
                return await self._looked_at(record)

        found = await self._store.list()
        records = [one for one in found if (all or not one.hidden) and tenant in (None, one.tenant)]
        return [
            self.describe(record, created=False)
            for record in await asyncio.gather(*(one(record) for record in records))
        ]

    async def destroy(self, text: str) -> None:
        """Gone when this returns. SessionNotFound when there is none; a failure leaves its row.

        BackendUnavailable: it is marked, nobody gets at it any more, and it goes when it can.
        """
        the_id = sandbox_id(text)
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

    async def remove(self, backend: Backend, the_id: SandboxId) -> None:
        """Remove whatever a backend holds for an id, alive or not. Bounded by DESTROY_TIMEOUT_S."""
        handle = self._handles.peek(the_id)
        dying: asyncio.Future[None] | None = None
        try:
            async with self._handles.reach.asking(backend.name, DESTROY_TIMEOUT_S):
                try:
                    cell = handle.cell if handle is not None else await backend.attach(the_id)
                except SandboxLost:
                    if isinstance(backend, Discards):
                        dying = asyncio.ensure_future(backend.discard(the_id))
                else:
                    dying = asyncio.ensure_future(cell.destroy())
                # One turn of the loop, in which it begins; our end is closed meanwhile.
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
        return described(record, created=created, used=used, clock=self._clock)

    async def _start(self, record: Record, plan: Plan) -> Record:
        try:
            async with asyncio.timeout(CREATE_TIMEOUT_S):
                cell = await plan.backend.create(record.id, plan.spec)
                channel = await Channel.open(await cell.dial())
        except TimeoutError as exc:
            raise BackendUnavailable(
                f"backend {plan.backend.name} did not make a sandbox in {CREATE_TIMEOUT_S:g} s",
                hint="the host may be overloaded; run doctor",
            ) from exc
        handle = Handle(record=record, backend=plan.backend, cell=cell, channel=channel)
        self._handles.keep(handle)
        # The runner ends itself: a sandbox needs nobody to be alive to be taken away.
        leasing = asyncio.ensure_future(_lease(channel, plan, LEASE_TIMEOUT_S))
        try:
            # The request goes out first; the row is written while the runner works.
            await asyncio.sleep(0)
            unenforced = tuple(cell.unenforced) if isinstance(cell, Candid) else ()
            told = {one.limit for one in unenforced}
            unenforced += tuple(one for one in record.unenforced if one.limit not in told)
            running = replace(record, state=State.RUNNING, unenforced=unenforced)
            await self._store.put(running)
            await leasing
        except BaseException:
            leasing.cancel()
            raise
        handle.record = running
        return running

    async def _undo(self, record: Record, cause: BaseException) -> None:
        """After a failed create. What cannot be removed now stays marked for the reaper."""
        if record.acquired != "spare":
            self._emit("sandbox.create_failed", record, error=type(cause).__name__)
        try:
            await self.finish_destroy(record, reason=not_made(cause))
        except SandkastenError as exc:
            # The caller gets the error that began this; the row says what is left to do.
            self._emit("sandbox.cleanup_failed", record, error=exc.code)
            if isinstance(cause, BackendUnavailable) and has_engine(record.backend):
                # An engine that is away makes nothing; were there anything, it would be found as
                # what nobody owns. Rows of what never was must not pile up until it is back.
                await self._chronicle.ended(record.id, "destroyed", not_made(cause))
                await self._store.drop(record.id)

    async def bury(self, record: Record) -> None:
        """With the lock of the id held: take away one that is over, and write down how it ended."""
        if record.state is State.DESTROYING:
            await self.finish_destroy(record)
        elif record.state is State.CREATING:
            end: SessionEnd = "lost" if rebooted(record) else "crashed"
            await self.finish_destroy(record, end, "whoever was making it died")
        else:
            judged = self._handles.judge(record)
            await self.finish_destroy(record, judged.end, judged.reason)

    async def finish_destroy(
        self, record: Record, end: SessionEnd = "destroyed", reason: str = ""
    ) -> None:
        """With the lock of the id held: mark, remove, write down its end, forget."""
        backend = self._handles.backend(record.backend)
        if record.state is not State.DESTROYING:
            # A full disk must not keep a sandbox alive: without the mark a crash from here on
            # leaves a row whose cell is dead, which the reaper also knows.
            with suppress(QuotaExceeded, InternalError):
                await self._store.put(replace(record, state=State.DESTROYING))
        try:
            await self.remove(backend, record.id)
        except BackendUnavailable:
            # Its leftovers go later, by somebody who does not know any more what ended it.
            if end != "destroyed":
                await self._chronicle.ended(record.id, end, reason)
            raise
        # Before its row goes, so that whoever asks finds one of the two.
        await self._chronicle.ended(record.id, end, reason)
        await self._store.drop(record.id, record)
        self._emit("sandbox.destroyed", record)

    async def destroy_quietly(self, the_id: SandboxId) -> None:
        """Gone, whoever did it, and nothing of it open here."""
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

    async def _looked_at(self, record: Record) -> Record:
        """The record with its state as it is now, not as it was when somebody last looked."""
        if not is_there(record.state):
            return record
        try:
            alive = await self._handles.alive(record)
        except (BackendUnavailable, Busy):
            if not has_engine(record.backend):
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


async def _lease(channel: Channel, plan: Plan, timeout_s: float) -> None:
    fields = {
        "idle_ms": int(plan.lease.idle_timeout_s * 1000),
        "lifetime_ms": int(plan.lease.lifetime_s * 1000),
    }
    await channel.call("lease", fields, timeout_s=timeout_s)


def _seen(task: asyncio.Future[None]) -> None:
    """Its failure is known by other means, or of no more interest."""
    if not task.cancelled():
        task.exception()


def _unknown(the_id: str) -> SessionNotFound:
    return SessionNotFound(
        f"no sandbox has the id {the_id}", hint="it may have been destroyed; list with ls"
    )


def rebooted(record: Record) -> bool:
    return record.boot_id != boot_id()
