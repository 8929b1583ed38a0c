"""Write the lifecycle of sandboxes to the journal, and ask it about ended ones.

Without a journal (embedded use) every call does nothing. Recording a start raises if it cannot be
written, because nothing may be made that is not recorded. Recording an end never raises; an end
that could not be written is kept here and written by `settle`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.errors import SandkastenError, SessionExpired
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import unscoped
from sandkasten.model.journal_rows import SessionRow
from sandkasten.model.sandbox.lifecycle import State, is_there
from sandkasten_runtime.engine.audit_trail import AuditTrail
from sandkasten_runtime.engine.commands.exec_past import MOST_LISTED, audited

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from sandkasten.model.journal_rows import SessionEnd
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import AuditLog, Clock, EventSink, Journal


_KILLED = "its processes were killed, from outside or for want of memory"


@dataclass(frozen=True, slots=True)
class EndReason:
    """How a sandbox ended, as the journal records it."""

    end: SessionEnd
    reason: str
    certain: bool = True
    """False if other processes may have used the sandbox since this one did."""


class SessionJournal:
    def __init__(
        self,
        journal: Journal | None,
        clock: Clock,
        events: EventSink | None,
        audit: AuditLog | None = None,
    ) -> None:
        self.journal = journal
        self.trail = AuditTrail(audit, clock)
        self.making: set[str] = set()
        """Sandboxes being created here, perhaps without a row in the ledger yet."""
        self._clock = clock
        self._events = events
        self._unwritten: dict[str, tuple[SessionEnd, float, str]] = {}
        self._open: set[str] | None = None

    async def begin(self, record: Record, key_id: str | None) -> None:
        """Record a new session, before its row in the ledger."""
        if not record.hidden:
            self.trail.allowed(record, key_id)
        if self.journal is None or record.hidden:
            return
        self.making.add(record.id)
        try:
            await self._begin(row_of(record, key_id))
        except BaseException:
            self.making.discard(record.id)
            raise

    async def adopt(self, record: Record) -> bool:
        """Record a session that another process began; return whether it was new here.

        That process had no journal: what it ran is in the audit log, from which the journal gets
        the newest commands and code.
        """
        if self.journal is None:
            return False
        row = await self.journal.session(record.id)
        if row is None:
            if self.trail.log is not None:
                for past in await audited(self.trail.log, record, MOST_LISTED):
                    self.journal.note_exec(past)
                # First these: a session that has a row is not adopted again.
                await self.journal.flush()
            await self._begin(row_of(record))
        elif row.ended_at is None and self._open is not None:
            self._open.add(record.id)
        return row is None

    async def _begin(self, row: SessionRow) -> None:
        assert self.journal is not None
        await self.journal.begin_session(row)
        if self._open is not None:
            self._open.add(row.id)

    async def runs(self, record: Record) -> None:
        if self.journal is not None and not record.hidden:
            await self.journal.session_runs(record.id)
            self.making.discard(record.id)

    def removed(self, record: Record, status: SessionEnd, reason: str = "") -> None:
        """Record in the audit log that a sandbox was removed."""
        self.trail.session_ended(record, status, reason)

    async def changed(self, record: Record) -> None:
        """Record changed labels."""
        if self.journal is None:
            return
        row = await self.journal.session(record.id)
        if row is not None:
            await self.journal.begin_session(replace(row, labels=dict(record.labels)))

    async def ended(self, the_id: str, status: SessionEnd, reason: str = "") -> None:
        """Record the end. The first recorded end counts. Never raises."""
        if self.journal is None:
            return
        first = self._unwritten.get(the_id, (status, self._clock.now(), reason))
        try:
            await self._end(the_id, first)
        except SandkastenError as exc:
            self._unwritten[the_id] = first
            self._emit("journal.failed", {"sandbox": the_id, "error": exc.code})
        self.making.discard(the_id)

    async def settle(self) -> None:
        """Write the ends that could not be written before; stop at the first failure."""
        while self.journal is not None and self._unwritten:
            the_id, first = next(iter(self._unwritten.items()))
            await self._end(the_id, first)

    async def _end(self, the_id: str, first: tuple[SessionEnd, float, str]) -> None:
        assert self.journal is not None
        await self.journal.end_session(the_id, *first)
        self._unwritten.pop(the_id, None)
        if self._open is not None:
            self._open.discard(the_id)

    async def gone(self, the_id: str, tenant: str | None = None) -> SessionExpired | None:
        """Return how a session that is not in the ledger ended; None if unknown or another
        tenant's.
        """
        if self.journal is None:
            return None
        row = await self.journal.session(the_id)
        if row is None or tenant not in (None, row.tenant):
            return None
        if row.ended_at is not None:
            return expired(the_id, row.status, row.reason)
        ending = self._unwritten.get(the_id)
        return None if ending is None else expired(the_id, ending[0], ending[2])

    async def open_rows(self) -> Sequence[SessionRow]:
        """Return the sessions without an end. From now on their ids are kept here: only one
        daemon at a time writes a journal.
        """
        if self.journal is None:
            return ()
        if self._open is None:
            self._open = set()
        rows = await self.journal.open_sessions()
        self._open.update(row.id for row in rows)
        return rows

    async def missing(self, the_id: str) -> None:
        """Record the end of a session that is in the ledger no longer."""
        if self.journal is None or the_id in self.making:
            return
        row = await self.journal.session(the_id)
        if row is not None and row.ended_at is None:
            await self.ended(the_id, "destroyed", "another process destroyed it")
        elif self._open is not None:
            self._open.discard(the_id)

    async def open_ids(self) -> AbstractSet[str]:
        """Return the ids of sessions without an end."""
        if self._open is None:
            await self.open_rows()
        return self._open or frozenset()

    def _emit(self, event: str, fields: Mapping[str, str]) -> None:
        if self._events is not None:
            self._events.emit(event, fields)


def row_of(record: Record, key_id: str | None = None) -> SessionRow:
    """Convert a record to a journal row, with names as their owner knows them."""
    key, workspace = record.session_key, record.workspace_id
    return SessionRow(
        id=record.id,
        tenant=record.tenant,
        image=record.image,
        backend=record.backend,
        created_at=record.created_at,
        status="running" if is_there(record.state) else State.CREATING.value,
        session_key=None if key is None else unscoped(key)[1],
        workspace_id=None if workspace is None else unscoped(workspace)[1],
        labels=dict(record.labels),
        key_id=key_id,
    )


def silent_end(cause: SandkastenError | None) -> EndReason:
    """Return why a sandbox ended without notice, from the details `reason` and `status` of the
    backend's error. That of a cluster has them.
    """
    details = {} if cause is None else cause.details
    reason = details.get("reason")
    if not isinstance(reason, str):
        return EndReason("crashed", _KILLED)
    return EndReason("crashed" if details.get("status") == "crashed" else "lost", reason)


def expired(the_id: str, status: str, reason: str) -> SessionExpired:
    phrase = {
        "destroyed": "was destroyed",
        "expired": "has expired",
        "crashed": "has crashed",
        "lost": "was lost",
    }[status]
    return SessionExpired(
        f"sandbox {the_id} {phrase}" + (f": {reason}" if reason else ""),
        hint="create a new one; ttl_seconds and lifetime_seconds set how long it lives",
        sandbox_id=the_id,
        status=status,
        reason=reason,
    )
