"""The reaper: finish what a dead process began, and remove what is over.

Other processes use the same ledger at the same time, so the reaper touches an id only while it
holds that id's lock and after reading its row again. A locked id is in use and is skipped. What
cannot be removed stays marked and is reported; the next pass tries again. If several daemons share
sandboxes, the reaper touches only those leased to this daemon. A backend that does not answer
delays only its own sandboxes. Idle time is not enforced here but by the runner
(`runner/src/runner/lease.rs`), which ends a sandbox that was idle for too long.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from sandkasten.errors import Busy, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.lifecycle import State, is_there
from sandkasten.model.sandbox.sandbox_values import Swept
from sandkasten_runtime.engine.lifecycle.sandboxes import Sandboxes, rebooted
from sandkasten_runtime.engine.lifecycle.upkeep import Upkeep
from sandkasten_runtime.engine.owner import owner_gone
from sandkasten_runtime.engine.placement.backend_health import LIST_TIMEOUT_S, no_answer_error
from sandkasten_runtime.engine.placement.places import LIFETIME_SLACK_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Backend, Clock, EventSink, Store
    from sandkasten_runtime.engine.handles import Handles
    from sandkasten_runtime.engine.lifecycle.pause import PauseControl

_AT_ONCE = 8


@dataclass(slots=True)
class _Tally:
    finished: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


_Work = Callable[[SandboxId, _Tally], Awaitable[None]]


class Reaper:
    def __init__(
        self,
        *,
        backends: Mapping[str, Backend],
        store: Store,
        sandboxes: Sandboxes,
        handles: Handles,
        pausing: PauseControl,
        clock: Clock,
        events: EventSink | None,
    ) -> None:
        self._backends = backends
        self._store = store
        self._upkeep = Upkeep(store)
        self._sandboxes = sandboxes
        self._handles = handles
        self._pausing = pausing
        self._clock = clock
        self._events = events

    async def sweep(self, *, quick: bool = False) -> Swept:
        """Run one pass. `quick` trusts the rows of running sandboxes and does not check each
        one.
        """
        tally = _Tally()
        gates: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_ONCE))

        async def row(record: Record) -> None:
            async with gates[record.backend]:
                await self._row(record, tally)

        async def litter(backend: Backend, the_id: SandboxId) -> None:
            async with gates[backend.name]:
                await self._orphan(backend, the_id, tally)

        # List owned ids first, then rows: an owned id without a row *afterwards* has none because
        # no process is creating it. The other order would race with every create.
        owned = await self._owned()
        records = await self._store.list()
        ids = {record.id for record in records}
        for the_id in await self._store.corrupt():
            ids.add(the_id)
            await self._corrupt(the_id, tally)
        async with asyncio.TaskGroup() as group:
            for record in records:
                if self._is_ours(record) and not self._is_settled(record, quick=quick):
                    group.create_task(row(record))
            for backend, the_id in owned:
                if the_id not in ids and self._upkeep.is_ours(backend.name, the_id):
                    group.create_task(litter(backend, the_id))
        self._pausing.forget(ids)
        swept = Swept(
            finished=tuple(tally.finished),
            expired=tuple(tally.expired),
            dead=tuple(tally.dead),
            orphans=tuple(tally.orphans),
            corrupt=tuple(tally.corrupt),
            failed=tuple(tally.failed),
        )
        self._report(swept)
        return swept

    async def bury(self, the_id: SandboxId) -> bool:
        """Remove a sandbox that was found dead; return whether it is gone. A locked one is being
        handled.
        """
        tally = _Tally()
        await self._locked(the_id, tally, self._collect)
        return bool(tally.dead or tally.expired or tally.finished)

    async def _owned(self) -> list[tuple[Backend, SandboxId]]:
        async def owned_by(backend: Backend) -> list[tuple[Backend, SandboxId]]:
            try:
                return [(backend, the_id) for the_id in await self._held(backend)]
            except SandkastenError as exc:
                # A backend that cannot answer now keeps its leftovers until it can.
                if not self._handles.health.knows(exc):
                    details = {"backend": backend.name, "error": exc.code}
                    self._emit("reaper.backend_silent", details)
                return []

        groups = await asyncio.gather(*(owned_by(backend) for backend in self._backends.values()))
        return [pair for pairs in groups for pair in pairs]

    async def _held(self, backend: Backend) -> Sequence[SandboxId]:
        try:
            async with self._handles.health.listing(backend.name):
                return await backend.owned()
        except TimeoutError as exc:
            raise no_answer_error(backend.name, LIST_TIMEOUT_S) from exc

    def _is_ours(self, record: Record) -> bool:
        if record.backend not in self._backends:
            return self._handles.departed(record)
        # What a daemon that was killed kept ready is known only to the one that follows it: others
        # see that its node lives.
        orphaned = record.hidden and owner_gone(record)
        return orphaned or self._upkeep.is_ours(record.backend, record.id)

    def _is_settled(self, record: Record, *, quick: bool) -> bool:
        """Return whether nothing is to be done for a sandbox, as far as this process knows
        without asking its backend.
        """
        if not is_there(record.state) or self._over(record):
            return False
        return quick or (self._handles.connected(record.id) and not self._pausing.tracks_idle)

    async def _row(self, record: Record, tally: _Tally) -> None:
        if is_there(record.state) and not self._over(record):
            try:
                if await self._handles.alive(record):
                    await self._pausing.keep(record)
                    return
            except SandkastenError:
                tally.failed.append(record.id)
                return
        await self._locked(record.id, tally, self._collect)

    async def _collect(self, the_id: SandboxId, tally: _Tally) -> None:
        record = await self._store.get(the_id)
        if record is None:
            return
        # One that is being created is locked. If it is not, its create has failed, and so has the
        # clean-up, for example because the ledger could not be reached.
        over = self._over(record)
        if is_there(record.state) and not over:
            return
        self._handles.health.check(record.backend, record.place)
        await self._sandboxes.bury(record)
        if record.state in (State.CREATING, State.DESTROYING):
            tally.finished.append(the_id)
        elif over and not rebooted(record):
            tally.expired.append(the_id)
        else:
            tally.dead.append(the_id)

    async def _orphan(self, backend: Backend, the_id: SandboxId, tally: _Tally) -> None:
        async def work(sandbox_id: SandboxId, sums: _Tally) -> None:
            # Its row may have been written since the list was read; a row always comes first.
            if await self._store.get(sandbox_id) is None:
                self._handles.health.check(backend.name)
                await self._sandboxes.remove(backend, sandbox_id)
                sums.orphans.append(sandbox_id)

        await self._locked(the_id, tally, work)

    async def _corrupt(self, the_id: SandboxId, tally: _Tally) -> None:
        async def work(sandbox_id: SandboxId, sums: _Tally) -> None:
            if await self._store.get(sandbox_id) is not None:
                return
            unsure: SandkastenError | None = None
            # A run-once backend owns no sandboxes, reachable or not.
            for backend in self._backends.values():
                if backend.capabilities.run_once:
                    continue
                try:
                    if sandbox_id in await self._held(backend):
                        await self._sandboxes.remove(backend, sandbox_id)
                except SandkastenError as exc:
                    unsure = exc
            if unsure is not None:
                # The id range may belong to that sandbox, and its file is the only evidence.
                raise unsure
            await self._store.drop(sandbox_id)
            sums.corrupt.append(sandbox_id)

        await self._locked(the_id, tally, work)

    async def _locked(self, the_id: SandboxId, tally: _Tally, work: _Work) -> None:
        try:
            async with self._store.lock(the_id, wait_s=0):
                with self._upkeep.fenced(the_id):
                    await work(the_id, tally)
        except Busy:
            return
        except SandkastenError as exc:
            tally.failed.append(the_id)
            if not self._handles.health.knows(exc):
                self._emit("reaper.failed", {"sandbox": the_id, "error": exc.code})

    def _over(self, record: Record) -> bool:
        if rebooted(record):
            return True
        if record.hidden and owner_gone(record):
            return True
        age_s = self._clock.boottime() - record.created_boottime
        # A paused runner cannot end itself, so there is no reason to wait.
        slack_s = 0.0 if record.state is State.PAUSED else LIFETIME_SLACK_S
        return record.state is not State.CREATING and age_s > record.lifetime_s + slack_s

    def _report(self, swept: Swept) -> None:
        for what in ("finished", "expired", "dead", "orphans", "corrupt"):
            for the_id in getattr(swept, what):
                self._emit("sandbox.reaped", {"sandbox": the_id, "reason": what})

    def _emit(self, event: str, fields: Mapping[str, str | int | float | bool | None]) -> None:
        if self._events is not None:
            self._events.emit(event, fields)
