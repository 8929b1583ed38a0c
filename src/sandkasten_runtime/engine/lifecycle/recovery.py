"""Recovery after a start: adopt, finish, remove or mark what the previous daemon left.

The ledger has what existed, the backend what still exists, and the journal learns what became of
each. `begin` runs before anything new starts and settles what was left half made. Sandboxes that
ran are settled by `finish`, a few at a time while requests are served, and each of them before its
first use, so their number does not delay the start. What cannot be done now is left to the reaper;
sandboxes of a backend that does not answer are left to the watch, which settles them when the
backend is back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from sandkasten.errors import SandkastenError
from sandkasten.model.sandbox.lifecycle import State, is_there
from sandkasten.model.sandbox.sandbox_values import Recovered
from sandkasten_runtime.engine.lifecycle.sandboxes import rebooted
from sandkasten_runtime.engine.lifecycle.upkeep import Upkeep
from sandkasten_runtime.engine.owner import owner_gone

if TYPE_CHECKING:
    from sandkasten.model.journal_rows import SessionRow
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Clock, EventSink, Store
    from sandkasten_runtime.engine.commands.exec_history import ExecHistory
    from sandkasten_runtime.engine.handles import Handles
    from sandkasten_runtime.engine.lifecycle.end_watch import EndWatch
    from sandkasten_runtime.engine.lifecycle.reaper import Reaper
    from sandkasten_runtime.engine.network_control import NetworkControl
    from sandkasten_runtime.engine.session_journal import SessionJournal

_AT_ONCE = 16
# Beside requests: several, because a sandbox that does not answer must not hold up the others, and
# one begins only this long after another, because each takes some milliseconds of the event loop.
_AT_ONCE_BEHIND = 4
_PACE_S = 0.005


class Recovery:
    def __init__(
        self,
        *,
        store: Store,
        handles: Handles,
        reaper: Reaper,
        session_journal: SessionJournal,
        history: ExecHistory,
        watch: EndWatch,
        network: NetworkControl,
        clock: Clock,
        events: EventSink | None,
    ) -> None:
        self._store = store
        self._upkeep = Upkeep(store)
        self._handles = handles
        self._reaper = reaper
        self._session_journal = session_journal
        self._history = history
        self._watch = watch
        self._network = network
        self._clock = clock
        self._events = events
        self._tally: Counter[str] = Counter()
        self._left: dict[str, Record] = {}
        self._known_running: set[str] = set()
        self._settling: dict[str, asyncio.Task[None]] = {}
        self._finishing: asyncio.Task[None] | None = None
        watch.settle = self._row
        watch.unrecovered = self._left

    async def begin(self) -> None:
        """Read what there is, and settle what was left half made or half removed."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def settle(record: Record) -> None:
            async with gate:
                await self._settle(record)

        open_rows = await self._session_journal.open_rows()
        rows = [row for row in await self._store.list() if not row.hidden]
        records = [row for row in rows if self._upkeep.is_ours(row.backend, row.id)]
        self._left.update((row.id, row) for row in records if is_there(row.state))
        self._watch.inherited.update(row.id for row in records)
        self._handles.settle = self._before_use
        await asyncio.gather(*(settle(row) for row in records if not is_there(row.state)))
        ids = {row.id for row in rows}
        self._known_running.update(row.id for row in open_rows if row.status == "running")
        for row in open_rows:
            if row.id not in ids:
                self._tally[await self._without_row(row)] += 1

    async def finish(self) -> Recovered:
        """Settle the sandboxes that ran."""
        turn = asyncio.Lock()

        async def work() -> None:
            while True:
                async with turn:
                    await asyncio.sleep(_PACE_S)
                    if not self._left:
                        return
                    task = self._begin_to_settle(self._left.pop(next(iter(self._left))))
                await asyncio.wait([task])

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE_BEHIND):
                group.create_task(work())
        self._handles.settle = None
        tally = self._tally
        swept = await self._reaper.sweep(quick=True)
        recovered = Recovered(
            kept=tally["kept"],
            adopted=tally["adopted"],
            finished=tally["finished"] + len(swept.finished),
            removed=len(swept.orphans) + len(swept.corrupt),
            expired=tally["expired"] + len(swept.expired),
            crashed=tally["crashed"],
            lost=tally["lost"],
        )
        self._emit("daemon.recovered", **{name: getattr(recovered, name) for name in _FIGURES})
        return recovered

    def finish_soon(self) -> None:
        """Call `finish` in the background. Its failure is reported, and the reaper tries again."""
        self._finishing = asyncio.get_running_loop().create_task(self._finish_quietly())

    async def aclose(self) -> None:
        finishing = () if self._finishing is None else (self._finishing,)
        tasks = [*finishing, *self._settling.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _finish_quietly(self) -> None:
        try:
            await self.finish()
        except SandkastenError as exc:
            self._emit("recovery.failed", sandbox="", error=exc.code)

    async def _before_use(self, record: Record) -> None:
        task = self._settling.get(record.id)
        if task is None:
            pending = self._left.pop(record.id, None)
            if pending is None:
                return
            task = self._begin_to_settle(pending)
        if task is not asyncio.current_task():
            # A command that ran meanwhile would be taken for one of the previous daemon. A caller
            # that is cancelled leaves the rest of it to the task.
            await asyncio.wait([task])

    def _begin_to_settle(self, record: Record) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._settle(record))
        self._settling[record.id] = task
        task.add_done_callback(lambda _: self._settling.pop(record.id, None))
        return task

    async def _settle(self, record: Record) -> None:
        try:
            self._tally[await self._row(record)] += 1
        except SandkastenError as exc:
            if self._handles.health.knows(exc):
                self._watch.unsettled.add(record.id)
            else:
                self._emit("recovery.failed", sandbox=record.id, error=exc.code)

    async def _row(self, record: Record) -> str:
        """Settle a sandbox that has a row in the ledger."""
        if record.state is State.CREATING and not owner_gone(record):
            return "others"
        if not is_there(record.state):
            return await self._over(record)
        if not await self._handles.alive(record):
            return await self._over(record)
        adopted = False
        if record.id not in self._known_running:
            adopted = await self._watch.adopt(record)
            if not adopted:
                # It was running, and its creator died before it could record that.
                await self._session_journal.runs(record)
        if record.state is State.RUNNING:
            try:
                await self._network.adopt(record)
            except SandkastenError as exc:
                self._emit("recovery.network_unchanged", sandbox=record.id, error=exc.code)
            try:
                await self._history.resume(record, restarted=True)
            except SandkastenError as exc:
                if not await self._handles.alive(record):
                    # It was dying when we checked.
                    return await self._over(record)
                # It is adopted anyway; the ends of its commands are recorded when they are
                # requested.
                self._emit("recovery.unfollowed", sandbox=record.id, error=exc.code)
        return "adopted" if adopted else "kept"

    async def _over(self, record: Record) -> str:
        half = record.state in (State.CREATING, State.DESTROYING)
        judged = self._handles.judge(record)
        if not await self._reaper.bury(record.id):
            # Another process is working on it, or it cannot be removed now.
            return "others"
        if half and not rebooted(record):
            return "finished"
        journal = self._session_journal.journal
        row = None if journal is None else await journal.session(record.id)
        return row.status if row is not None else judged.end

    async def _without_row(self, row: SessionRow) -> str:
        booted_at = self._clock.now() - self._clock.boottime()
        if row.created_at < booted_at:
            await self._session_journal.ended(row.id, "lost", "the machine was restarted")
            return "lost"
        never = "it was never made" if row.status == "creating" else "nothing is left of it"
        await self._session_journal.ended(row.id, "crashed", f"the daemon died: {never}")
        return "crashed"

    def _emit(self, event: str, **fields: str | int) -> None:
        if self._events is not None:
            self._events.emit(event, fields)


_FIGURES = ("kept", "adopted", "finished", "removed", "expired", "crashed", "lost")
