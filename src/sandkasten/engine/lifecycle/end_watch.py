"""Notices within a second or so that a sandbox has ended, without anybody asking for it.

A connection that ends by itself is looked into at once; sandboxes that nobody is connected to are
looked at every few seconds, as is what other processes of the same ledger made or destroyed
meanwhile. What is over is written down and its leftovers are removed. Only a daemon keeps watch.
Nothing here raises; what cannot be done now is tried in the next round. The sandboxes of a backend
that does not answer are left as they are, and those of the others do not wait for it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sandkasten.engine.session_journal import row_of
from sandkasten.errors import SandkastenError
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.isolation_levels import has_engine
from sandkasten.model.sandbox.lifecycle import State, is_there

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from sandkasten.engine.handles import Handles
    from sandkasten.engine.lifecycle.reaper import Reaper
    from sandkasten.engine.session_journal import Chronicle
    from sandkasten.model.journal_rows import SessionRow
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Backend, EventSink, Store

T = TypeVar("T")

ROUND_S = 2.0
# The first process of a sandbox goes a moment after its connections do.
_LOOKS_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
_AT_ONCE = 16
# How long a round waits for a backend; what it asked there goes on, and is not asked twice.
_PATIENCE_S = 1.0


class Watch:
    def __init__(
        self,
        *,
        backends: Mapping[str, Backend],
        store: Store,
        handles: Handles,
        reaper: Reaper,
        chronicle: Chronicle,
        disconnects: asyncio.Queue[SandboxId],
        events: EventSink | None,
    ) -> None:
        """`disconnects` holds ids of sandboxes whose connection was cut."""
        self._backends = backends
        self._store = store
        self._handles = handles
        self._reaper = reaper
        self._chronicle = chronicle
        self._disconnects = disconnects
        self._events = events
        self._tasks: list[asyncio.Task[None]] = []
        self._looking: dict[str, asyncio.Task[bool]] = {}
        self._groups: dict[str, asyncio.Task[None]] = {}
        self.unsettled: set[SandboxId] = set()
        """Found at the start, with a backend that did not say what became of them."""
        self.settle: Callable[[Record], Awaitable[object]] | None = None
        """Does for one of those what the start would have done."""

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

    async def round(self) -> None:
        """One look at everything."""
        with suppress(SandkastenError):
            await self._chronicle.settle()
        # Journal first: a session is in it before it is in the ledger, and ended in it before
        # it leaves the ledger.
        begun = await self._chronicle.open_rows()
        records = await self._store.list()
        groups: dict[str, list[Record]] = {}
        for record in records:
            if self._is_ours(record):
                groups.setdefault(record.backend, []).append(record)
        for name in self._handles.reach.names():
            # Nobody's sandbox asks for it any more, and still it should be known when it is back.
            if name in self._backends:
                groups.setdefault(name, [])
        for name, group in groups.items():
            if name not in self._groups:
                task = asyncio.get_running_loop().create_task(self._look_at(name, group))
                self._groups[name] = task
                task.add_done_callback(partial(self._group_done, name))
        near = [task for name, task in self._groups.items() if not has_engine(name)]
        if near:
            await asyncio.wait(near)
        if self._groups:
            await asyncio.wait(self._groups.values(), timeout=_PATIENCE_S)
        self.unsettled &= {record.id for record in records}
        await self._reconcile(begun, {record.id: record for record in records})

    def _group_done(self, name: str, _: object) -> None:
        self._groups.pop(name, None)

    async def _look_at(self, name: str, records: Sequence[Record]) -> None:
        """Those of one backend. An engine that does not answer for one is not asked for others."""
        gate = asyncio.Semaphore(1 if has_engine(name) else _AT_ONCE)
        away = False

        async def one(record: Record) -> None:
            nonlocal away
            async with gate:
                if not away:
                    away = not await self._quietly(record.id, self._look, record)

        await asyncio.gather(*(one(record) for record in records))
        if not records:
            await self._quietly("", self._ask, name)

    async def _ask(self, name: str) -> None:
        async with self._handles.reach.looking(name, _PATIENCE_S):
            await self._backends[name].owned()

    async def adopt(self, record: Record) -> bool:
        """A sandbox that another process made is known from now on; whether it is a new one."""
        journal = self._chronicle.journal
        if journal is None or await journal.session(record.id) is not None:
            return False
        await journal.begin_session(row_of(record))
        self._emit("sandbox.adopted", record.id)
        return True

    async def _reconcile(
        self, begun: Sequence[SessionRow], records: dict[SandboxId, Record]
    ) -> None:
        journal = self._chronicle.journal
        if journal is None:
            return
        there: set[str] = set(records)
        known = {row.id for row in begun}
        for the_id in known - there:
            # Looked at again, since the list is as old as the round: it may have come into the
            # ledger meanwhile, or its end may have been written.
            if await self._store.get(SandboxId(the_id)) is not None:
                continue
            if the_id in self._chronicle.making:
                continue
            row = await journal.session(the_id)
            if row is not None and row.ended_at is None:
                await self._chronicle.ended(the_id, "destroyed", "another process destroyed it")
        for the_id, record in records.items():
            if the_id not in known and is_there(record.state) and not record.hidden:
                await self._quietly(the_id, self.adopt, record)

    def _is_ours(self, record: Record) -> bool:
        return record.backend in self._backends and not record.hidden

    async def _look(self, record: Record) -> None:
        dead = record.state is State.LOST
        if record.state is State.DESTROYING and has_engine(record.backend):
            # Somebody wanted it gone while its engine was away, or is at it and has its lock.
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
        """Whether whoever was asked answered."""
        try:
            await work(about)
        except SandkastenError as exc:
            if self._handles.reach.knows(exc):
                return False
            self._emit("watch.failed", the_id, error=exc.code)
        return True

    def _emit(self, event: str, the_id: str, **more: str) -> None:
        if self._events is not None:
            self._events.emit(event, {"sandbox": the_id, **more})
