"""The journal in a database: sessions, commands, traffic, and their retention. Implements
`ports.Journal`.

The statements are in the part of SQL that SQLite and PostgreSQL share, with numbered parameters
(`$1`). A driver runs them, and has what differs: how a batch of commands is written, how a session
ends, and which sessions are this daemon's. The audit log itself is not here; the journal keeps its
newest hash, so that a missing end is noticed.

Does not own the database: closing it only writes the pending rows.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.audit_records import AuditHead
from sandkasten.model.commands.exec_values import ExecNetwork
from sandkasten.model.journal_rows import CODE_BYTES, ExecRow, SessionRow, shortened
from sandkasten.model.json_codec import from_json, to_json
from sandkasten_runtime.store.record_rules import Retention
from sandkasten_server.records.write_behind import WriteBehind

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence

    from sandkasten.model.journal_rows import SessionEnd

# Rows per statement: others wait while they are deleted.
_PRUNE_AT_ONCE: Final = 5000
_DAY_S: Final = 86_400
_MOST_INTEGER: Final = (1 << 63) - 1
_AUDIT_HEAD: Final = "audit_head"

_SESSION_FIELDS: Final = tuple(field.name for field in fields(SessionRow))
_EXEC_FIELDS: Final = tuple(field.name for field in fields(ExecRow))
_SESSION: Final = ", ".join(_SESSION_FIELDS)
_EXEC: Final = ", ".join(_EXEC_FIELDS)


def _marks(count: int) -> str:
    return ", ".join(f"${number}" for number in range(1, count + 1))


def _newer(names: Sequence[str]) -> str:
    return ", ".join(f"{name} = excluded.{name}" for name in names)


# A row may be written late: `running` never replaces an end, and in a session that has ended a
# running command becomes `lost` (LOSE_EXEC).
NOTE_EXEC: Final = f"""
INSERT INTO execs ({_EXEC}) VALUES ({_marks(len(_EXEC_FIELDS))})
ON CONFLICT (session_id, id) DO UPDATE SET {_newer(_EXEC_FIELDS)}
WHERE excluded.status <> 'running' OR execs.status = 'running'
"""  # noqa: S608  (names of fields)
LOSE_EXECS: Final = """
UPDATE execs SET status = 'lost' WHERE session_id = $1 AND status = 'running' AND EXISTS
(SELECT 1 FROM sessions WHERE sessions.id = session_id AND ended_at IS NOT NULL)
"""
LOSE_EXEC: Final = f"{LOSE_EXECS} AND execs.id = $2"
# An upsert from a SELECT needs a condition in SQLite.
_TRAFFIC: Final = """
INSERT INTO traffic (session_id, day, tenant, bytes)
SELECT CAST($1 AS text), CAST($2 AS bigint), CAST($3 AS text), CASE WHEN more > 0 THEN more ELSE 0
END FROM (SELECT CAST($4 AS bigint) - CAST(coalesce(sum(bytes), 0) AS bigint) AS more FROM traffic
WHERE session_id = CAST($1 AS text) AND day <> CAST($2 AS bigint)) AS counted WHERE true
ON CONFLICT (session_id, day) DO UPDATE SET bytes = excluded.bytes
WHERE excluded.bytes > traffic.bytes
"""
_OLD_SESSIONS: Final = """
DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE ended_at < $1 LIMIT $2)
"""
# Rows of earlier days are needed while the session lives: they add up to what it has counted.
_OLD_TRAFFIC: Final = """
DELETE FROM traffic WHERE (session_id, day) IN (SELECT session_id, day FROM traffic
WHERE day < CAST($1 AS double precision) AND NOT EXISTS
(SELECT 1 FROM sessions WHERE sessions.id = session_id AND ended_at IS NULL) LIMIT $2)
"""
# Also those whose session has been forgotten, whenever they started.
_OLD_EXECS: Final = """
DELETE FROM execs WHERE (session_id, id) IN (SELECT session_id, id FROM execs
WHERE started_at < $1 AND status <> 'running' LIMIT $2)
"""
_EXECS_WITHOUT_SESSION: Final = """
DELETE FROM execs WHERE (session_id, id) IN (SELECT session_id, id FROM execs
WHERE started_at < $1 AND NOT EXISTS
(SELECT 1 FROM sessions WHERE sessions.id = session_id) LIMIT $2)
"""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that is constant text. Values from callers are only ever bound."""

    sql: str
    values: tuple[Any, ...] = ()


class JournalDriver(Protocol):
    """A database with the tables of the journal. A call that returns is committed."""

    own_columns: Mapping[str, object]
    """Further columns of a session that begins at this daemon, with their values."""

    @property
    def own_sessions(self) -> Condition:
        """Return which sessions without an end belong to this daemon."""
        ...

    async def fetch(self, sql: str, *values: object) -> Sequence[Sequence[Any]]: ...
    async def execute(self, sql: str, *values: object) -> int:
        """Return the number of changed rows."""
        ...

    async def settle(self, pending: WriteBehind[tuple[str, str], ExecRow]) -> None:
        """Make later calls see the commands that were recorded so far."""
        ...

    def note_execs(self, rows: Sequence[ExecRow]) -> asyncio.Future[None]:
        """Write commands together, by `NOTE_EXEC` and `LOSE_EXEC`."""
        ...

    async def end_session(self, session_id: str, status: str, at: float, reason: str) -> None:
        """End a session without an end, and its running commands with it."""
        ...

    async def keep(self, name: str, value: str) -> None:
        """Store a value of this daemon by its name."""
        ...

    async def kept(self, name: str) -> str | None: ...
    async def end_abandoned(self, now: float, not_seen_since: float) -> None:
        """End the sessions of daemons that were not seen for so long."""
        ...


class SqlJournal:
    def __init__(self, driver: JournalDriver, retention: Retention | None = None) -> None:
        self._driver = driver
        self._retention = retention if retention is not None else Retention()
        # Only this process writes it.
        self._audit_head: AuditHead | None = None
        self._behind: WriteBehind[tuple[str, str], ExecRow] = WriteBehind(driver.note_execs)

    # ---- sessions

    async def begin_session(self, row: SessionRow) -> None:
        own = self._driver.own_columns
        names = ", ".join((*_SESSION_FIELDS, *own))
        await self._driver.execute(
            f"INSERT INTO sessions ({names}) VALUES ({_marks(len(_SESSION_FIELDS) + len(own))})"  # noqa: S608
            f" ON CONFLICT (id) DO UPDATE SET {_newer(_SESSION_FIELDS)}"
            " WHERE sessions.ended_at IS NULL",
            *_session_values(row),
            *own.values(),
        )

    async def session_runs(self, session_id: str) -> None:
        await self._driver.execute(
            "UPDATE sessions SET status = 'running' WHERE id = $1 AND ended_at IS NULL", session_id
        )

    async def end_session(
        self, session_id: str, status: SessionEnd, at: float, reason: str = ""
    ) -> None:
        # Pending rows first: the running commands of the session are lost with it.
        await self._driver.settle(self._behind)
        await self._driver.end_session(session_id, status, at, storable(reason))

    async def session(self, session_id: str) -> SessionRow | None:
        rows = await self._sessions(Condition("id = $1", (session_id,)))
        return rows[0] if rows else None

    async def sessions(
        self,
        tenant: str | None,
        *,
        status: str | None = None,
        limit: int = 1000,
        before: str | None = None,
    ) -> Sequence[SessionRow]:
        where = _Where()
        where.equal("tenant", tenant)
        where.equal("status", status)
        if before is not None:
            where.add(
                "(created_at, id) < (SELECT created_at, id FROM sessions WHERE id = {})", before
            )
        order = f"ORDER BY created_at DESC, id DESC LIMIT {where.bind(limit)}"
        return await self._sessions(where.condition(), order)

    async def open_sessions(self) -> Sequence[SessionRow]:
        """Return the sessions without an end that belong to this daemon."""
        return await self._sessions(self._driver.own_sessions, "ORDER BY created_at, id")

    async def _sessions(self, where: Condition, order: str = "") -> Sequence[SessionRow]:
        sql = f"SELECT {_SESSION} FROM sessions WHERE {where.sql} {order}"  # noqa: S608
        return [_session(row) for row in await self._driver.fetch(sql, *where.values)]

    # ---- commands

    def note_exec(self, row: ExecRow) -> None:
        self._behind.put((row.session_id, row.id), row)

    async def execs(
        self, session_id: str, *, limit: int = 256, before: str | None = None
    ) -> Sequence[ExecRow]:
        where = _Where()
        where.equal("session_id", session_id)
        if before is not None:
            where.add(
                "(started_at, id) < (SELECT started_at, id FROM execs"
                " WHERE session_id = {} AND id = {})",
                session_id,
                before,
            )
        order = f"ORDER BY started_at DESC, id DESC LIMIT {where.bind(limit)}"
        return await self._execs(where.condition(), order)

    async def exec(self, session_id: str, exec_id: str) -> ExecRow | None:
        rows = await self._execs(Condition("session_id = $1 AND id = $2", (session_id, exec_id)))
        return rows[0] if rows else None

    async def _execs(self, where: Condition, order: str = "") -> Sequence[ExecRow]:
        await self._driver.settle(self._behind)
        sql = f"SELECT {_EXEC} FROM execs WHERE {where.sql} {order}"  # noqa: S608
        return [_exec(row) for row in await self._driver.fetch(sql, *where.values)]

    # ---- traffic

    async def note_traffic(self, session_id: str, tenant: str, day: int, total: int) -> None:
        await self._driver.execute(_TRAFFIC, session_id, day, tenant, total)

    async def traffic(self, tenant: str, day: int) -> int:
        sql = "SELECT coalesce(sum(bytes), 0) FROM traffic WHERE tenant = $1 AND day = $2"
        ((total,),) = await self._driver.fetch(sql, tenant, day)
        return int(total)

    # ---- the audit log

    async def keep_audit_head(self, head: AuditHead) -> None:
        await self._driver.keep(_AUDIT_HEAD, f"{head.seq} {head.hash}")
        self._audit_head = head

    async def audit_head(self) -> AuditHead | None:
        if self._audit_head is None:
            text = await self._driver.kept(_AUDIT_HEAD)
            if text is None:
                return None
            seq, _, hashed = text.partition(" ")
            self._audit_head = AuditHead(int(seq), hashed)
        return self._audit_head

    # ---- upkeep

    async def flush(self) -> None:
        await self._behind.flush()

    async def prune(self, now: float) -> int:
        keep = self._retention
        await self._driver.end_abandoned(now, now - max(keep.sessions_s, _DAY_S))
        count = await self._delete(_OLD_SESSIONS, now - keep.sessions_s)
        count += await self._delete(_OLD_TRAFFIC, now // _DAY_S)
        count += await self._delete(_OLD_EXECS, now - keep.execs_s)
        return count + await self._delete(_EXECS_WITHOUT_SESSION, now - keep.sessions_s)

    async def _delete(self, sql: str, oldest: float) -> int:
        count = 0
        while deleted := await self._driver.execute(sql, oldest, _PRUNE_AT_ONCE):
            count += deleted
        return count

    async def aclose(self) -> None:
        await self._behind.aclose()


class _Where:
    """Conditions that must all be true, with their values numbered in the order of binding."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._values: list[Any] = []

    def bind(self, value: object) -> str:
        """Return the mark of a value."""
        self._values.append(value)
        return f"${len(self._values)}"

    def add(self, part: str, *values: object) -> None:
        """Add a condition with `{}` for each value."""
        self._parts.append(part.format(*map(self.bind, values)))

    def equal(self, column: str, value: str | None) -> None:
        if value is not None:
            self.add(f"{column} = {{}}", value)

    def condition(self) -> Condition:
        return Condition(" AND ".join(self._parts) or "true", tuple(self._values))


def storable(value: Any) -> Any:
    """Return a value that every database can store: one row that it refuses would keep all others
    that are written with it from being written.
    """
    if isinstance(value, str):
        text = value if value.isascii() else value.encode("utf-8", "replace").decode()
        return text.replace("\0", "\ufffd")
    if isinstance(value, int):
        return min(max(value, -_MOST_INTEGER - 1), _MOST_INTEGER)
    return value


def _session_values(row: SessionRow) -> list[Any]:
    return [
        json.dumps(dict(row.labels), separators=(",", ":"))
        if name == "labels"
        else storable(getattr(row, name))
        for name in _SESSION_FIELDS
    ]


def exec_values(row: ExecRow) -> list[Any]:
    """Return the values of `NOTE_EXEC`."""
    values = {name: storable(getattr(row, name)) for name in _EXEC_FIELDS}
    values["command"] = storable(shortened(row.command, CODE_BYTES).text)
    values["network"] = None if row.network is None else storable(json.dumps(to_json(row.network)))
    return [values[name] for name in _EXEC_FIELDS]


def _session(values: Sequence[Any]) -> SessionRow:
    named = dict(zip(_SESSION_FIELDS, values, strict=True))
    return SessionRow(**{**named, "labels": MappingProxyType(json.loads(named["labels"]))})


def _exec(values: Sequence[Any]) -> ExecRow:
    row = ExecRow(*values)
    if row.network is None:
        return row
    network: Any = row.network
    return replace(row, network=from_json(ExecNetwork, json.loads(network), "network"))
