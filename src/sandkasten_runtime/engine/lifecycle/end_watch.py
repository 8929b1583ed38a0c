"""Notice within about a second that a sandbox has ended, without a request for it.

If a connection ends by itself, its sandbox is checked at once, so a sandbox with a connection needs
no other check. Sandboxes without one are checked in rounds of a few seconds, a bounded number in
each, and so is what other processes of the same ledger created or destroyed. Ends are recorded and
leftovers removed. Only a daemon runs the watch. Nothing here raises; what fails is tried again in
the next round. Sandboxes of a backend that does not answer are left unchanged, and other backends
do not wait for it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sandkasten.errors import SandkastenError
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.lifecycle import State, is_there
from sandkasten_runtime.engine.lifecycle.upkeep import Upkeep
from sandkasten_runtime.engine.owner import owner_gone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Backend, EventSink, Store
    from sandkasten_runtime.engine.handles import Handles
    from sandkasten_runtime.engine.lifecycle.reaper import Reaper
    from sandkasten_runtime.engine.session_journal import SessionJournal
    from sandkasten_runtime.engine.tenant_traffic import TenantTraffic

T = TypeVar("T")
_Group = tuple[str, str]
"""A backend and one of its places, which can be unreachable while the others answer."""

ROUND_S = 2.0
# The first process of a sandbox exits shortly after its connections close.
_LOOKS_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
_AT_ONCE = 16
# A limit for each backend. Checking a sandbox without a connection takes about 0.1 ms, and a round
# must cost the same however many there are; the others are checked in the following rounds.
_MOST_CHECKS = 128
# How long a round waits for a backend. The request continues and is not sent twice.
_PATIENCE_S = 1.0


class EndWatch:
    def __init__(
        self,
        *,
        backends: Mapping[str, Backend],
        store: Store,
        handles: Handles,
        reaper: Reaper,
        session_journal: SessionJournal,
        disconnects: asyncio.Queue[SandboxId],
        traffic: TenantTraffic,
        events: EventSink | None,
    ) -> None:
        """`disconnects` holds ids of sandboxes whose connection was cut."""
        self._backends = backends
        self._store = store
        self._upkeep = Upkeep(store)
        self._handles = handles
        self._reaper = reaper
        self._session_journal = session_journal
        self._disconnects = disconnects
        self._traffic = traffic
        self._events = events
        self._tasks: list[asyncio.Task[None]] = []
        self._looking: dict[str, asyncio.Task[bool]] = {}
        self._groups: dict[_Group, asyncio.Task[None]] = {}
        self.unsettled: set[SandboxId] = set()
        """Sandboxes found at the start whose backend did not answer."""
        self.settle: Callable[[Record], Awaitable[object]] | None = None
        """Settles one of those as recovery would have done."""
        self.unrecovered: Container[str] = ()
        """Sandboxes that recovery has not settled yet, which are left to it."""
        self.inherited: set[SandboxId] = set()
        """Sandboxes of shared backends whose daemon died, and which were settled here."""
        self._next: dict[_Group, int] = {}
        self._reconciled: Sequence[Record] | None = None
        self._reconciled_ids: AbstractSet[str] = frozenset()

    def start(self) -> None:
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [
                loop.create_task(self._go_round()),
                loop.create_task(self._look_at_cut()),
            ]

    async def aclose(self) -> None:
        tasks: list[asyncio.Task[Any]] = [
            *self._tasks,
            *self._looking.values(),
            *self._groups.values(),
        ]
        self._tasks = []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._traffic.aclose()
        await self._handles.network_audit.aclose()

    async def round(self) -> None:
        """Check everything once."""
        with suppress(SandkastenError):
            await self._session_journal.settle()
        # Journal first: a session is in the journal before it is in the ledger, and its end is
        # recorded before it leaves the ledger.
        open_ids = frozenset(await self._session_journal.open_ids())
        records = await self._store.list()
        own_records = [
            record for record in records if self._upkeep.is_ours(record.backend, record.id)
        ]
        self._inherit(own_records)
        groups: dict[_Group, list[Record]] = {}
        for record in own_records:
            if self._must_look(record):
                groups.setdefault((record.backend, record.place), []).append(record)
        for name in self._handles.health.names():
            # No sandbox refers to this backend any more, but its return should still be noticed.
            if name in self._backends and not any(name == other for other, _ in groups):
                groups[name, ""] = []
        for which, group in groups.items():
            if which not in self._groups:
                some = self._in_turn(which, group)
                task = asyncio.get_running_loop().create_task(self._look_at(which[0], some))
                self._groups[which] = task
                task.add_done_callback(partial(self._group_done, which))
        near = [
            task
            for (name, _), task in self._groups.items()
            if not self._handles.health.is_external(name)
        ]
        if near:
            await asyncio.wait(near)
        if self._groups:
            await asyncio.wait(self._groups.values(), timeout=_PATIENCE_S)
        if self.unsettled:
            self.unsettled &= {record.id for record in own_records}
        await self._reconcile(open_ids, records)
        # All of them: what is left of a tenant's quota depends on each.
        networked = [record for record in records if record.network != "none"]
        await self._traffic.round(networked, _PATIENCE_S)
        await self._handles.network_audit.round(own_records, _PATIENCE_S)

    def _inherit(self, records: Sequence[Record]) -> None:
        """Settle, once, the sandboxes of a daemon that died while this one runs."""
        inherited = {
            record.id
            for record in records
            if self._upkeep.is_shared(record.backend)
            and self._is_adoptable(record)
            and owner_gone(record)
        }
        self.unsettled |= inherited - self.inherited
        self.inherited = inherited

    def _must_look(self, record: Record) -> bool:
        if not self._is_ours(record) or record.id in self.unrecovered:
            return False
        if is_there(record.state):
            return record.id in self.unsettled or not self._handles.connected(record.id)
        return record.state in (State.LOST, State.DESTROYING)

    def _in_turn(self, which: _Group, group: Sequence[Record]) -> Sequence[Record]:
        """Return those that this round checks."""
        if len(group) <= _MOST_CHECKS:
            return group
        first = self._next.get(which, 0) % len(group)
        self._next[which] = first + _MOST_CHECKS
        return [*group[first:], *group[:first]][:_MOST_CHECKS]

    def _group_done(self, which: _Group, _: object) -> None:
        self._groups.pop(which, None)

    async def _look_at(self, name: str, records: Sequence[Record]) -> None:
        """Check the sandboxes of one backend and place. If its engine does not answer for one, skip
        the others.
        """
        gate = asyncio.Semaphore(1 if self._handles.health.is_external(name) else _AT_ONCE)
        away = False

        async def check(record: Record) -> None:
            nonlocal away
            async with gate:
                if not away:
                    away = not await self._quietly(record.id, self._look, record)

        await asyncio.gather(*(check(record) for record in records))
        if not records:
            await self._quietly("", self._ask, name)

    async def _ask(self, name: str) -> None:
        async with self._handles.health.listing(name):
            await self._backends[name].owned()

    async def adopt(self, record: Record) -> bool:
        """Adopt a sandbox that another process made; return whether it was new here."""
        adopted = await self._session_journal.adopt(record)
        if adopted:
            self._emit("sandbox.adopted", record.id)
        return adopted

    async def _reconcile(self, known_ids: AbstractSet[str], records: Sequence[Record]) -> None:
        if self._session_journal.journal is None:
            return
        if records is self._reconciled and known_ids == self._reconciled_ids:
            return
        gone_ids = known_ids - {record.id for record in records}
        for the_id in gone_ids:
            # Check again, since the list is as old as the round: the session may have entered the
            # ledger meanwhile, or its end may have been recorded.
            if await self._store.get(SandboxId(the_id)) is None:
                await self._session_journal.missing(the_id)
        new = [
            record
            for record in records
            if record.id not in known_ids and self._is_adoptable(record)
        ]
        for record in new:
            await self._quietly(record.id, self.adopt, record)
        if not gone_ids and not new:
            self._reconciled, self._reconciled_ids = records, known_ids

    def _is_adoptable(self, record: Record) -> bool:
        there = is_there(record.state) and not record.hidden
        is_ours = self._upkeep.is_ours(record.backend, record.id)
        return there and is_ours and record.id not in self.unrecovered

    def _is_ours(self, record: Record) -> bool:
        return record.backend in self._backends and not record.hidden

    async def _look(self, record: Record) -> None:
        dead = record.state is State.LOST
        if record.state is State.DESTROYING and self._handles.health.is_external(record.backend):
            # Its removal was requested while its engine was unreachable, or another process is
            # removing it now.
            dead = True
        if is_there(record.state):
            if record.id in self.unsettled and self.settle is not None:
                await self.settle(record)
                self.unsettled.discard(record.id)
                return
            dead = not await self._handles.alive(record)
        if dead:
            await self._reaper.bury(record.id)

    def _suspect(self, the_id: SandboxId) -> None:
        if the_id not in self._looking:
            work = self._quietly(the_id, self._look_into, the_id)
            task = asyncio.get_running_loop().create_task(work)
            self._looking[the_id] = task
            task.add_done_callback(lambda _: self._looking.pop(the_id, None))

    async def _look_into(self, the_id: SandboxId) -> None:
        for pause_s in _LOOKS_S:
            await asyncio.sleep(pause_s)
            record = await self._store.get(the_id)
            if record is None or not self._is_ours(record):
                return
            if record.state not in (State.RUNNING, State.LOST):
                return
            await self._look(record)

    async def _look_at_cut(self) -> None:
        while True:
            self._suspect(await self._disconnects.get())

    async def _go_round(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            try:
                await self.round()
            except SandkastenError as exc:
                self._emit("watch.failed", "", error=exc.code)

    async def _quietly(self, the_id: str, work: Callable[[T], Awaitable[object]], about: T) -> bool:
        """Return whether the backend answered."""
        try:
            await work(about)
        except SandkastenError as exc:
            if self._handles.health.knows(exc):
                return False
            self._emit("watch.failed", the_id, error=exc.code)
        return True

    def _emit(self, event: str, the_id: str, **more: str) -> None:
        if self._events is not None:
            self._events.emit(event, {"sandbox": the_id, **more})
