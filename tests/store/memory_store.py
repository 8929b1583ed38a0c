"""The ledger and the journal of one process: fakes behind `ports.Store` and `ports.Journal`.

Both pass the contract suites of the real ones (test_directory.py, test_journal_contract.py).
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from sandkasten.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.audit_records import AuditHead
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.journal_rows import ExecRow, SessionEnd, SessionRow
    from sandkasten.model.sandbox.ledger_record import Record


class MemoryStore:
    """Implements `ports.Store`; nobody else sees it."""

    def __init__(self) -> None:
        self._rows: dict[SandboxId, Record] = {}
        self._held: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def put(self, record: Record) -> None:
        self._rows[record.id] = record

    async def get(self, sandbox_id: SandboxId) -> Record | None:
        return self._rows.get(sandbox_id)

    async def find_key(self, session_key: str) -> Record | None:
        return next((r for r in self._rows.values() if r.session_key == session_key), None)

    async def list(self) -> Sequence[Record]:
        return sorted(self._rows.values(), key=lambda r: (r.created_at, r.id))

    async def drop(self, sandbox_id: SandboxId, record: Record | None = None) -> None:
        self._rows.pop(sandbox_id, None)

    async def corrupt(self) -> Sequence[SandboxId]:
        return []

    def lock(self, name: str, *, wait_s: float = 30.0) -> AbstractAsyncContextManager[None]:
        lock = self._held.get(name)
        if lock is None:
            lock = self._held[name] = asyncio.Lock()
        return _Hold(lock, wait_s)


class _Hold(AbstractAsyncContextManager[None]):
    """Not a generator: those cannot begin any more while a loop ends, and an engine closes then."""

    def __init__(self, lock: asyncio.Lock, wait_s: float) -> None:
        self._lock = lock
        self._wait_s = wait_s

    async def __aenter__(self) -> None:
        if self._wait_s <= 0 and self._lock.locked():
            raise Busy("another process is working on this sandbox", hint="try again in a moment")
        try:
            async with asyncio.timeout(max(self._wait_s, 1.0)):
                await self._lock.acquire()
        except TimeoutError as exc:
            raise Busy(
                f"another process is working on this sandbox (waited {self._wait_s:g} s)",
                hint="try again in a moment",
            ) from exc

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


_DAY_S: Final = 86_400.0


class MemoryJournal:
    """Implements `ports.Journal`; what it remembers ends with the process."""

    def __init__(self, *, retention_s: float = 30 * _DAY_S) -> None:
        self._retention_s = retention_s
        self._sessions: dict[str, SessionRow] = {}
        self._execs: dict[str, dict[str, ExecRow]] = {}
        self._audit_head: AuditHead | None = None
        self._traffic: dict[tuple[str, int], tuple[str, int]] = {}

    async def begin_session(self, row: SessionRow) -> None:
        known = self._sessions.get(row.id)
        if known is None or known.ended_at is None:
            self._sessions[row.id] = row

    async def session_runs(self, session_id: str) -> None:
        row = self._sessions.get(session_id)
        if row is not None and row.ended_at is None:
            self._sessions[session_id] = replace(row, status="running")

    async def end_session(
        self, session_id: str, status: SessionEnd, at: float, reason: str = ""
    ) -> None:
        row = self._sessions.get(session_id)
        if row is None or row.ended_at is not None:
            return
        self._sessions[session_id] = replace(row, status=status, ended_at=at, reason=reason)
        execs = self._execs.get(session_id, {})
        for exec_id, one in execs.items():
            if one.status == "running":
                execs[exec_id] = replace(one, status="lost")

    async def session(self, session_id: str) -> SessionRow | None:
        return self._sessions.get(session_id)

    async def sessions(
        self,
        tenant: str | None,
        *,
        status: str | None = None,
        limit: int = 1000,
        before: str | None = None,
    ) -> Sequence[SessionRow]:
        rows = sorted(self._sessions.values(), key=_session_age, reverse=True)
        if before is not None:
            last = self._sessions.get(before)
            if last is None:
                return []
            rows = [row for row in rows if _session_age(row) < _session_age(last)]
        return [
            row for row in rows if tenant in (None, row.tenant) and status in (None, row.status)
        ][:limit]

    async def open_sessions(self) -> Sequence[SessionRow]:
        return [row for row in self._sessions.values() if row.ended_at is None]

    def note_exec(self, row: ExecRow) -> None:
        rows = self._execs.setdefault(row.session_id, {})
        if row.status == "running":
            # What comes late knows less: nothing runs again that has ended.
            if row.id in rows and rows[row.id].status != "running":
                return
            session = self._sessions.get(row.session_id)
            if session is not None and session.ended_at is not None:
                row = replace(row, status="lost")
        rows[row.id] = row

    async def execs(
        self, session_id: str, *, limit: int = 256, before: str | None = None
    ) -> Sequence[ExecRow]:
        found = self._execs.get(session_id, {})
        rows = sorted(found.values(), key=_exec_age, reverse=True)
        if before is not None:
            last = found.get(before)
            if last is None:
                return []
            rows = [row for row in rows if _exec_age(row) < _exec_age(last)]
        return rows[:limit]

    async def exec(self, session_id: str, exec_id: str) -> ExecRow | None:
        return self._execs.get(session_id, {}).get(exec_id)

    async def note_traffic(self, session_id: str, tenant: str, day: int, total: int) -> None:
        of_session = {key: row for key, row in self._traffic.items() if key[0] == session_id}
        before = sum(one for (_, other), (_, one) in of_session.items() if other != day)
        known = of_session.get((session_id, day), (tenant, 0))[1]
        self._traffic[session_id, day] = (tenant, max(known, total - before))

    async def traffic(self, tenant: str, day: int) -> int:
        rows = self._traffic.items()
        return sum(one for (_, other), (who, one) in rows if (who, other) == (tenant, day))

    async def keep_audit_head(self, head: AuditHead) -> None:
        self._audit_head = head

    async def audit_head(self) -> AuditHead | None:
        return self._audit_head

    async def flush(self) -> None:
        return None

    async def prune(self, now: float) -> int:
        before = now - self._retention_s
        gone = [
            row.id
            for row in self._sessions.values()
            if row.ended_at is not None and row.ended_at < before
        ]
        count = len(gone)
        for the_id in gone:
            del self._sessions[the_id]
            count += len(self._execs.pop(the_id, {}))
        return count

    async def aclose(self) -> None:
        return None


def _session_age(row: SessionRow) -> tuple[float, str]:
    return row.created_at, row.id


def _exec_age(row: ExecRow) -> tuple[float, str]:
    return row.started_at, row.id
