"""Write the lifecycle of sandboxes to the journal, and ask it about ended ones.

Without a journal (embedded use) every call does nothing. Recording a start raises if it cannot be
written, because nothing may be made that is not recorded. Recording an end never raises; an end
that could not be written is kept here and written by `settle`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.engine.audit_trail import AuditTrail
from sandkasten.errors import SandkastenError, SessionExpired
from sandkasten.model.access.tenancy import unscoped
from sandkasten.model.journal_rows import SessionRow
from sandkasten.model.sandbox.lifecycle import State, is_there

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.journal_rows import SessionEnd
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import AuditLog, Clock, EventSink, Journal


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

    async def begin(self, record: Record, key_id: str | None) -> None:
        """Record a new session, before its row in the ledger."""
        if not record.hidden:
            self.trail.allowed(record, key_id)
        if self.journal is None or record.hidden:
            return
        self.making.add(record.id)
        try:
            await self.journal.begin_session(row_of(record, key_id))
        except BaseException:
            self.making.discard(record.id)
            raise

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
            await self.journal.end_session(the_id, *first)
            self._unwritten.pop(the_id, None)
        except SandkastenError as exc:
            self._unwritten[the_id] = first
            self._emit("journal.failed", {"sandbox": the_id, "error": exc.code})
        self.making.discard(the_id)

    async def settle(self) -> None:
        """Write the ends that could not be written before; stop at the first failure."""
        while self.journal is not None and self._unwritten:
            the_id, first = next(iter(self._unwritten.items()))
            await self.journal.end_session(the_id, *first)
            self._unwritten.pop(the_id, None)

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
        known = self._unwritten.get(the_id)
        return None if known is None else expired(the_id, known[0], known[2])

    async def open_rows(self) -> Sequence[SessionRow]:
        return () if self.journal is None else await self.journal.open_sessions()

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
