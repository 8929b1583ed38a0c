"""Copy what the egress processes decided into the audit log.

Each egress process writes its own log, of which the newest records are kept. A daemon reads it
every few seconds, and every engine reads it before it removes a sandbox. Equal verdicts of one
reading become one record with a count, so that a sandbox cannot flood the log. What a sandbox with
a full log lost before it was read is counted as `left_out`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sandkasten.errors import SandkastenError
from sandkasten.model.audit_records import AuditFilter
from sandkasten.model.redaction import excerpt
from sandkasten.model.sandbox.lifecycle import State, is_there
from sandkasten.model.sandbox.network_policy import attempt
from sandkasten.ports import Networked
from sandkasten_runtime.engine.activity import activity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.network_policy import NetworkAttempt
    from sandkasten_runtime.engine.audit_trail import AuditTrail
    from sandkasten_runtime.engine.handles import Handle, Handles

_AT_ONCE: Final = 16
# Where they are files of this machine, they are read in milliseconds.
_LAST_READ_S: Final = 5.0
_MOST_DIFFERENT: Final = 256
_HOST_CHARS: Final = 256
_MOST_READ: Final = 100_000
_VERDICTS: Final = {
    "opened": "network.allow",
    "refused": "network.refuse",
    "would_refuse": "network.would_refuse",
    "request": "network.request",
}


class NetworkAudit:
    def __init__(self, handles: Handles, trail: AuditTrail) -> None:
        self._handles = handles
        self._trail = trail
        self._read: dict[str, tuple[int, float]] = {}
        """Number and time of the last record that was copied, by sandbox."""
        self._earlier: dict[str, int] | None = None
        self._round: asyncio.Task[None] | None = None

    async def round(self, records: Sequence[Record], patience_s: float) -> None:
        """Copy the new verdicts of living sandboxes. One that does not answer delays no other;
        after `patience_s` the rest goes on in the background.
        """
        if self._trail.log is None:
            return
        if self._read:
            there = {record.id for record in records}
            self._read = {key: value for key, value in self._read.items() if key in there}
        if self._round is None or self._round.done():
            open_ones = [
                record
                for record in records
                if record.network != "none"
                and record.state is State.RUNNING
                and not record.hidden
                and record.backend not in self._handles.health.names()
            ]
            if not open_ones:
                return
            self._round = asyncio.get_running_loop().create_task(self._copy_all(open_ones))
        await asyncio.wait([self._round], timeout=patience_s)

    async def ended(self, handle: Handle) -> None:
        """Copy the verdicts of a sandbox that is removed next, unless reading them takes long."""
        if handle.record.network != "none" and is_there(handle.record.state):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_READ_S):
                    await self._copy(handle)
        self._read.pop(handle.record.id, None)

    async def aclose(self) -> None:
        if self._round is not None:
            self._round.cancel()
            with suppress(asyncio.CancelledError):
                await self._round

    async def _copy_all(self, records: Sequence[Record]) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def copy(record: Record) -> None:
            async with gate:
                with suppress(SandkastenError), activity(False):
                    await self._copy(await self._handles.get(record.id))

        await asyncio.gather(*(copy(record) for record in records))

    async def _copy(self, handle: Handle) -> None:
        record, cell = handle.record, handle.cell
        if self._trail.log is None or not isinstance(cell, Networked):
            return
        last, since = await self._position(record)
        with suppress(SandkastenError):
            attempts = [attempt(row) for row in await cell.network_records(last, since)]
            if attempts:
                self._write(record, attempts, last)
                self._read[record.id] = (attempts[-1].seq, attempts[-1].at)

    async def _position(self, record: Record) -> tuple[int, float]:
        position = self._read.get(record.id)
        if position is not None:
            return position
        if self._earlier is None:
            self._earlier = await self._copied_before(record.created_at)
        return self._earlier.get(record.id, 0), 0.0

    async def _copied_before(self, since: float) -> dict[str, int]:
        """Return up to where earlier processes have copied."""
        assert self._trail.log is not None
        wanted = AuditFilter(kind="network", since=since, limit=_MOST_READ, newest=True)
        positions: dict[str, int] = {}
        for row in await self._trail.log.read(wanted):
            upto = row.detail.get("upto", "")
            if row.session_id is not None and upto.isdecimal():
                positions[row.session_id] = max(positions.get(row.session_id, 0), int(upto))
        return positions

    def _write(self, record: Record, attempts: Sequence[NetworkAttempt], last: int) -> None:
        counts: dict[tuple[str, str, str], int] = {}
        left_out = max(0, attempts[0].seq - last - 1)
        for entry in attempts:
            action = _VERDICTS.get(entry.event)
            if action is None:
                continue
            target = f"{entry.host or entry.address or ''}:{entry.port}"
            if entry.method:
                target = f"{entry.method} {target}{entry.path or ''}"
            kind = (action, excerpt(target, _HOST_CHARS), excerpt(entry.rule, _HOST_CHARS))
            if kind not in counts and len(counts) >= _MOST_DIFFERENT:
                left_out += 1
            else:
                counts[kind] = counts.get(kind, 0) + 1
        upto = {"upto": str(attempts[-1].seq)}
        for (action, target, rule), count in counts.items():
            outcome = "refused" if action == "network.refuse" else "ok"
            detail = {"rule": rule, "count": str(count), **upto}
            self._trail.network(record, action, target, outcome, detail)
        if left_out:
            detail = {"left_out": str(left_out), **upto}
            self._trail.network(record, "network.left_out", "", "ok", detail)
