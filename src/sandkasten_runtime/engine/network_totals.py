"""Sums of the network counters of all sandboxes, for metrics and for the quotas of tenants.

Each egress process counts for its sandbox. The engine reads the counters when the metrics are read
and before the sandbox is removed, and adds the difference since the last time. A sandbox that is
older than this engine is counted from the first reading on, so a restart of the daemon starts the
sums at zero and counts nothing twice.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import Busy, SandboxLost, SandkastenError
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.network_policy import SILENT_HINT, NetworkCounts
from sandkasten.ports import CountsAfterEnd, Networked, backend_part

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Backend
    from sandkasten_runtime.engine.handles import Handle

_CONCURRENT_READS: Final = 16
# An egress process that did not answer is not asked again so soon, so that nothing waits for it
# twice in a row.
_ASK_AGAIN_S: Final = 10.0
_LAST_READ_S: Final = 0.5
_SUMMED: Final = tuple(field.name for field in fields(NetworkCounts) if field.name != "open")


class NetworkTotals:
    def __init__(self, since_boottime: float) -> None:
        self._since = since_boottime
        self._seen: dict[str, NetworkCounts] = {}
        self._silent: dict[str, float] = {}
        """When a process that did not answer is asked again."""
        self._sums = dict.fromkeys(_SUMMED, 0)
        self.note: Callable[[Record, NetworkCounts], Awaitable[None]] | None = None
        """Called with counters that have changed since they were last read."""

    async def read(self, handles: Iterable[Handle]) -> NetworkCounts:
        """Return the sums; `open` is the number of connections now."""
        gate = asyncio.Semaphore(_CONCURRENT_READS)

        async def open_now(handle: Handle) -> int:
            async with gate:
                counts = await self.read_one(handle)
            return 0 if counts is None else counts.open

        # Most sandboxes have no network, and a task for each of them would cost more than reading.
        counted = [
            handle
            for handle in handles
            if handle.record.network != "none" or handle.record.id in self._seen
        ]
        opened = await asyncio.gather(*(open_now(handle) for handle in counted))
        return NetworkCounts(open=sum(opened), **self._sums)

    async def of(self, handle: Handle, cell: Networked) -> NetworkCounts:
        """Return the counters of one sandbox; of a paused one, those from before the pause, and of
        one whose process does not answer, the last ones that are known. Raise Busy without any.
        """
        earlier = self._seen.get(handle.record.id)
        if handle.record.state is State.PAUSED:
            return earlier or NetworkCounts()
        try:
            return await self._asked(handle, cell)
        except (Busy, SandboxLost) as exc:
            if handle.record.network == "none":
                # The process was cut off when it could not be notified that the network is closed.
                return replace(earlier or NetworkCounts(), open=0)
            if earlier is None or isinstance(exc, SandboxLost):
                raise
            return earlier

    async def ended(self, handle: Handle) -> None:
        """Read the counters of one sandbox for the last time. A process that does not
        answer at once is skipped.
        """
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_READ_S):
                    await self.read_one(handle)
        finally:
            self._seen.pop(handle.record.id, None)
            self._silent.pop(handle.record.id, None)

    async def _asked(self, handle: Handle, cell: Networked) -> NetworkCounts:
        the_id = handle.record.id
        if time.monotonic() < self._silent.get(the_id, 0.0):
            raise Busy(
                f"the network of sandbox {the_id} does not answer",
                hint=SILENT_HINT,
            )
        try:
            counts = await cell.network_counts()
        except Busy:
            self._silent[the_id] = time.monotonic() + _ASK_AGAIN_S
            raise
        self._silent.pop(the_id, None)
        return counts

    async def ended_unattended(self, backend: Backend, record: Record) -> None:
        """Note the final counters of a sandbox without a handle, before its files are removed."""
        if self.note is None or record.network == "none":
            return
        if backend.capabilities.counts_after_end:
            with suppress(SandkastenError, TimeoutError):
                async with asyncio.timeout(_LAST_READ_S):
                    counter = await backend_part(backend, CountsAfterEnd)
                    counts = await counter.final_counts(record.id)
                await self.note(record, counts)

    async def read_one(self, handle: Handle) -> NetworkCounts | None:
        """Return the counters of one sandbox, and add them; None if it does not answer."""
        record = handle.record
        if not isinstance(handle.cell, Networked):
            return None
        if record.network == "none" and record.id not in self._seen:
            return None
        if record.state is State.PAUSED:
            return self._seen.get(record.id)
        with suppress(SandkastenError):
            counts = await self._asked(handle, handle.cell)
            older = counts if record.created_boottime < self._since else NetworkCounts()
            earlier = self._seen.get(record.id)
            before = older if earlier is None else earlier
            for name in _SUMMED:
                self._sums[name] += max(0, getattr(counts, name) - getattr(before, name))
            self._seen[record.id] = counts
            if self.note is not None and counts != earlier:
                with suppress(SandkastenError):
                    await self.note(record, counts)
            return counts
        return None
