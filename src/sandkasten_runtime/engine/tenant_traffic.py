"""Count the network bytes of a tenant per day, and close its networks when its quota is used up.

Each egress process counts for its sandbox and stops at the last allowance that it received, also
without a daemon. The daemon adds up the counters, writes the sum to the journal, and sends each
process a new allowance. Bytes that are counted while no daemon runs belong to the day on which the
next daemon reads them. A tenant whose sandboxes do not answer delays no other tenant.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from sandkasten.errors import SandkastenError
from sandkasten.model.sandbox.lifecycle import State, is_there
from sandkasten.model.sandbox.network_shares import allowance
from sandkasten_runtime.engine.activity import activity

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.network_policy import NetworkCounts
    from sandkasten.ports import Clock, EventSink, Journal, Store
    from sandkasten_runtime.engine.handles import Handle, Handles
    from sandkasten_runtime.engine.network_control import NetworkControl

_DAY_S: Final = 86_400
_CONCURRENT_SANDBOXES: Final = 16
# A new allowance is sent only if it differs by more than 1/8, so that a busy tenant does not cost a
# message to each of its sandboxes in every round.
_RESEND_FRACTION: Final = 8
# An egress process shares the processor time of its sandbox, so code inside can slow it down.
_NEAR_S: Final = 5.0
_TURN_S: Final = 5.0


class TenantTraffic:
    def __init__(
        self,
        handles: Handles,
        store: Store,
        journal: Journal | None,
        control: NetworkControl,
        clock: Clock,
        events: EventSink | None,
    ) -> None:
        self._handles = handles
        self._store = store
        self._journal = journal
        self._control = control
        self._clock = clock
        self._events = events
        self._sent: dict[str, tuple[int, int]] = {}
        """The last allowance of each sandbox: the day, and the bytes that were left."""
        self._rounds: dict[str, asyncio.Task[None]] = {}
        """The running round of each tenant."""
        handles.network_totals.note = self.note

    async def note(self, record: Record, counts: NetworkCounts) -> None:
        """Record what a sandbox has counted since it was created."""
        if self._journal is not None and not record.hidden:
            total = counts.bytes_in + counts.bytes_out
            await self._journal.note_traffic(record.id, record.tenant, self._day(), total)

    async def used(self, tenant: str) -> int:
        """Return the bytes of this day, including those that living sandboxes have just counted."""
        if self._journal is None:
            return 0
        records = [record for record in await self._store.list() if record.tenant == tenant]
        await self._read_counters(records)
        return await self._journal.traffic(tenant, self._day())

    async def counted(self, handle: Handle) -> NetworkCounts | None:
        """Read the counters of one sandbox; None if it does not answer."""
        return await self._handles.network_totals.read_one(handle)

    def forget(self, the_id: str) -> None:
        """Forget the last allowance of a sandbox, because an update replaces it."""
        self._sent.pop(the_id, None)

    async def round(self, records: Sequence[Record], patience_s: float) -> None:
        """Send sandboxes their new allowances. A quota that is used up ends their connections, and
        the next day allows them again.

        A platform can hang, so tenants with sandboxes there are waited for `patience_s`, and
        others 5 seconds longer. A round that takes longer goes on in the background, and the tenant
        gets no second one meanwhile.
        """
        self._sent = {
            record.id: self._sent[record.id] for record in records if record.id in self._sent
        }
        by_tenant: Mapping[str, list[Record]] = defaultdict(list)
        for record in records:
            by_tenant[record.tenant].append(record)
        near = []
        for tenant, all_of_it in by_tenant.items():
            if not any(map(_is_limited, all_of_it)) or tenant in self._rounds:
                continue
            task = asyncio.get_running_loop().create_task(self._round_of(tenant, all_of_it))
            self._rounds[tenant] = task
            task.add_done_callback(partial(self._round_done, tenant))
            if not any(self._handles.health.is_external(record.backend) for record in all_of_it):
                near.append(task)
        if near:
            await asyncio.wait(near, timeout=_NEAR_S)
        if self._rounds:
            await asyncio.wait(self._rounds.values(), timeout=patience_s)

    async def aclose(self) -> None:
        tasks = list(self._rounds.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _round_done(self, tenant: str, _: object) -> None:
        self._rounds.pop(tenant, None)

    async def _round_of(self, tenant: str, records: Sequence[Record]) -> None:
        if self._journal is None:
            return
        try:
            await self._read_counters(records)
            day = self._day()
            used = await self._journal.traffic(tenant, day)
        except SandkastenError as exc:
            if self._events is not None:
                self._events.emit("watch.failed", {"sandbox": "", "error": exc.code})
            return

        async def send(record: Record) -> None:
            remaining = max(0, (record.network_bytes_per_day or 0) - used)
            if record.state is State.RUNNING and self._must_send(record.id, day, remaining):
                await self._send(record, day, remaining)

        await _each(send, filter(_is_limited, records))

    def _must_send(self, the_id: str, day: int, remaining: int) -> bool:
        sent_day, sent = self._sent.get(the_id, (-1, 0))
        if sent_day != day or (remaining == 0) != (sent == 0):
            return True
        return abs(remaining - sent) > sent // _RESEND_FRACTION

    async def _send(self, record: Record, day: int, remaining: int) -> None:
        # An update also sends rules, which must not be replaced by older ones. This waits for its
        # turn, so that frequent updates cannot keep a sandbox from getting its allowance.
        async with self._store.lock(record.id, wait_s=_TURN_S):
            with activity(False):
                handle = await self._handles.get(record.id)
            await self._handles.refresh(handle)
            if not _is_limited(handle.record) or handle.record.state is not State.RUNNING:
                return
            counted = await self.counted(handle)
            if counted is None:
                # It moves nothing until it answers again, and stops at its last allowance.
                return
            policy = replace(
                self._control.recorded(handle.record), allowance=allowance(remaining, counted)
            )
            await self._control.change(handle, policy, None)
        before = self._sent.get(record.id, (-1, 1))
        self._sent[record.id] = (day, remaining)
        if remaining == 0 and before != (day, 0):
            self._emit("network.quota_reached", record)

    async def _read_counters(self, records: Sequence[Record]) -> None:
        """Read the counters of sandboxes with a network."""

        async def count(record: Record) -> None:
            with activity(False):
                await self.counted(await self._handles.get(record.id))

        open_ones = [
            record
            for record in records
            if record.network != "none"
            and is_there(record.state)
            and not record.hidden
            # Each request to an unreachable platform would take long.
            and record.backend not in self._handles.health.names()
        ]
        await _each(count, open_ones)

    def _day(self) -> int:
        """Return the number of the day, UTC."""
        return int(self._clock.now() // _DAY_S)

    def _emit(self, event: str, record: Record) -> None:
        if self._events is not None:
            self._events.emit(event, {"sandbox": record.id, "tenant": record.tenant})


async def _each(work: Callable[[Record], Awaitable[None]], records: Iterable[Record]) -> None:
    """Do this for each sandbox, several at once. A sandbox that does not answer is left out."""
    gate = asyncio.Semaphore(_CONCURRENT_SANDBOXES)

    async def attempt(record: Record) -> None:
        async with gate:
            with suppress(SandkastenError):
                await work(record)

    await asyncio.gather(*(attempt(record) for record in records))


def _is_limited(record: Record) -> bool:
    limited = record.network_bytes_per_day is not None and record.network != "none"
    return limited and is_there(record.state) and not record.hidden
