"""The journal in PostgreSQL: sessions and commands of all daemons. Implements `ports.Journal`.

Each daemon settles the sessions that it began itself (`node`); history and traffic are read across
all of them. Does not own the database: closing it only writes the pending rows.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sandkasten.model.audit_records import AuditHead
from sandkasten.model.commands.exec_values import ExecNetwork
from sandkasten.model.journal_rows import CODE_BYTES, ExecRow, SessionRow, shortened
from sandkasten.model.json_codec import from_json, to_json
from sandkasten.store.postgres.postgres_database import ALIVE, text_of
from sandkasten.store.record_rules import Retention
from sandkasten.store.write_behind import WriteBehind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.journal_rows import SessionEnd
    from sandkasten.store.postgres.postgres_database import PostgresDatabase, Row

# Rows per statement: others wait for the locks of deleted rows.
_PRUNE_AT_ONCE: Final = 5000
_DAY_S: Final = 86_400
_MOST_INTEGER: Final = (1 << 63) - 1

_SESSION_FIELDS: Final = tuple(field.name for field in fields(SessionRow))
_EXEC_FIELDS: Final = tuple(field.name for field in fields(ExecRow))
_SESSION: Final = ", ".join(_SESSION_FIELDS)
_EXEC: Final = ", ".join(_EXEC_FIELDS)


def _marks(count: int) -> str:
    return ", ".join(f"${number}" for number in range(1, count + 1))


def _newer(names: Sequence[str]) -> str:
    return ", ".join(f"{name} = excluded.{name}" for name in names)


_BEGIN = f"""
INSERT INTO sessions ({_SESSION}, node) VALUES ({_marks(len(_SESSION_FIELDS) + 1)})
ON CONFLICT (id) DO UPDATE SET {_newer(_SESSION_FIELDS)} WHERE sessions.ended_at IS NULL
"""  # noqa: S608  (names of fields)
# A row may be written late: `running` never replaces an end, and in a session that has ended a
# running command becomes `lost` (_LOSE).
_NOTE = f"""
INSERT INTO execs ({_EXEC}) VALUES ({_marks(len(_EXEC_FIELDS))})
ON CONFLICT (session_id, id) DO UPDATE SET {_newer(_EXEC_FIELDS)}
WHERE excluded.status <> 'running' OR execs.status = 'running'
"""  # noqa: S608
_LOSE = """
UPDATE execs SET status = 'lost' WHERE session_id = ANY($1) AND status = 'running' AND EXISTS
(SELECT 1 FROM sessions WHERE sessions.id = session_id AND ended_at IS NOT NULL)
"""
# Locks the sessions, so that none of them ends before its commands are written.
_HOLD = "SELECT 1 FROM sessions WHERE id = ANY($1) ORDER BY id FOR SHARE"
_TRAFFIC = """
INSERT INTO traffic (session_id, day, tenant, bytes) VALUES ($1, $2, $3, greatest(0, $4 -
(SELECT coalesce(sum(bytes), 0)::bigint FROM traffic WHERE session_id = $1 AND day <> $2)))
ON CONFLICT (session_id, day) DO UPDATE SET bytes = greatest(traffic.bytes, excluded.bytes)
"""
# A daemon that was away for so long finds what is left of its sandboxes without a row, and removes
# it. Its position in the audit log stays, or its records would be copied twice.
_OLD_NODES = """
WITH gone AS (DELETE FROM nodes WHERE seen_at < to_timestamp($1) RETURNING id),
rows AS (DELETE FROM ledger USING gone WHERE ledger.node = gone.id AND NOT ledger.shared),
kept AS (DELETE FROM state USING gone WHERE state.node = gone.id AND state.name <> 'audit_copied')
UPDATE sessions SET status = 'lost', ended_at = $2, reason = 'its daemon did not come back'
FROM gone WHERE sessions.node = gone.id AND ended_at IS NULL AND NOT EXISTS
(SELECT 1 FROM ledger WHERE ledger.id = sessions.id AND ledger.shared)
RETURNING sessions.id
"""
# Rows of earlier days are needed while the session lives: they add up to what it has counted.
_OLD_TRAFFIC = """
DELETE FROM traffic WHERE (session_id, day) IN (SELECT session_id, day FROM traffic
WHERE day < $1::double precision AND NOT EXISTS
(SELECT 1 FROM sessions WHERE sessions.id = session_id AND ended_at IS NULL) LIMIT $2)
"""


class PostgresJournal:
    def __init__(
        self,
        database: PostgresDatabase,
        node: str,
        retention: Retention | None = None,
        *,
        shared: frozenset[str] = frozenset(),
    ) -> None:
        """`shared`: backends whose sandboxes every daemon can reach."""
        self._database = database
        self._shared = shared
        self._node = node
        # Only this process writes that of its node.
        self._audit_head: AuditHead | None = None
        self._retention = retention if retention is not None else Retention()
        self._behind: WriteBehind[tuple[str, str], ExecRow] = WriteBehind(
            lambda rows: asyncio.ensure_future(self._note(rows))
        )

    # ---- sessions

    async def begin_session(self, row: SessionRow) -> None:
        await self._database.execute(_BEGIN, *_values(row), self._node)

    async def session_runs(self, session_id: str) -> None:
        await self._database.execute(
            "UPDATE sessions SET status = 'running' WHERE id = $1 AND ended_at IS NULL", session_id
        )

    async def end_session(
        self, session_id: str, status: SessionEnd, at: float, reason: str = ""
    ) -> None:
        # Pending rows first: the running commands of the session are lost with it.
        await self._behind.flush()
        await self._database.execute(
            "SELECT end_session($1, $2, $3, $4)", session_id, status, at, text_of(reason)
        )

    async def session(self, session_id: str) -> SessionRow | None:
        found = await self._database.fetch_one(
            f"SELECT {_SESSION} FROM sessions WHERE id = $1",  # noqa: S608
            session_id,
        )
        return None if found is None else _session(found)

    async def sessions(
        self,
        tenant: str | None,
        *,
        status: str | None = None,
        limit: int = 1000,
        before: str | None = None,
    ) -> Sequence[SessionRow]:
        found = await self._database.fetch(
            f"SELECT {_SESSION} FROM sessions"  # noqa: S608
            " WHERE ($1::text IS NULL OR tenant = $1) AND ($2::text IS NULL OR status = $2)"
            " AND ($3::text IS NULL OR (created_at, id) <"
            " (SELECT last.created_at, last.id FROM sessions last WHERE last.id = $3))"
            " ORDER BY created_at DESC, id DESC LIMIT $4",
            tenant,
            status,
            before,
            limit,
        )
        return [_session(row) for row in found]

    async def open_sessions(self) -> Sequence[SessionRow]:
        """Return the sessions without an end that this node began, and those of shared backends
        that a dead one began.
        """
        found = await self._database.fetch(
            f"SELECT {_SESSION} FROM sessions WHERE ended_at IS NULL"  # noqa: S608
            f" AND (node = $1 OR backend = ANY($2) AND NOT {ALIVE.format(node='sessions.node')})"
            " ORDER BY created_at, id",
            self._node,
            [*self._shared],
        )
        return [_session(row) for row in found]

    # ---- commands

    def note_exec(self, row: ExecRow) -> None:
        self._behind.put((row.session_id, row.id), row)

    async def execs(
        self, session_id: str, *, limit: int = 256, before: str | None = None
    ) -> Sequence[ExecRow]:
        await self._behind.flush()
        found = await self._database.fetch(
            f"SELECT {_EXEC} FROM execs WHERE session_id = $1"  # noqa: S608
            " AND ($2::text IS NULL OR (started_at, id) < (SELECT last.started_at, last.id"
            " FROM execs last WHERE last.session_id = $1 AND last.id = $2))"
            " ORDER BY started_at DESC, id DESC LIMIT $3",
            session_id,
            before,
            limit,
        )
        return [_exec(row) for row in found]

    async def exec(self, session_id: str, exec_id: str) -> ExecRow | None:
        await self._behind.flush()
        found = await self._database.fetch_one(
            f"SELECT {_EXEC} FROM execs WHERE session_id = $1 AND id = $2",  # noqa: S608
            session_id,
            exec_id,
        )
        return None if found is None else _exec(found)

    async def _note(self, rows: Sequence[ExecRow]) -> None:
        sessions = sorted({row.session_id for row in rows})
        async with self._database.transaction() as connection:
            await connection.execute(_HOLD, sessions)
            # In one order, or two such transactions with the same rows wait for each other.
            ordered = sorted(rows, key=lambda row: (row.session_id, row.id))
            await connection.executemany(_NOTE, [_exec_values(row) for row in ordered])
            await connection.execute(_LOSE, sessions)

    # ---- traffic

    async def note_traffic(self, session_id: str, tenant: str, day: int, total: int) -> None:
        await self._database.execute(_TRAFFIC, session_id, day, tenant, total)

    async def traffic(self, tenant: str, day: int) -> int:
        found = await self._database.fetch_one(
            "SELECT coalesce(sum(bytes), 0)::bigint AS total FROM traffic"
            " WHERE tenant = $1 AND day = $2",
            tenant,
            day,
        )
        return 0 if found is None else int(found["total"])

    # ---- the audit log

    async def keep_audit_head(self, head: AuditHead) -> None:
        await self._database.execute(
            "INSERT INTO state (node, name, value) VALUES ($1, 'audit_head', $2)"
            " ON CONFLICT (node, name) DO UPDATE SET value = excluded.value",
            self._node,
            f"{head.seq} {head.hash}",
        )
        self._audit_head = head

    async def audit_head(self) -> AuditHead | None:
        if self._audit_head is not None:
            return self._audit_head
        found = await self._database.fetch_one(
            "SELECT value FROM state WHERE node = $1 AND name = 'audit_head'", self._node
        )
        if found is None:
            return None
        seq, _, hashed = found["value"].partition(" ")
        self._audit_head = AuditHead(int(seq), hashed)
        return self._audit_head

    # ---- upkeep

    async def flush(self) -> None:
        await self._behind.flush()

    async def prune(self, now: float) -> int:
        keep = self._retention
        lost = await self._database.write(_OLD_NODES, now - max(keep.sessions_s, _DAY_S), now)
        if lost:
            await self._database.execute(_LOSE, [row["id"] for row in lost])
        gone = await self._delete(
            "DELETE FROM sessions WHERE id IN"
            " (SELECT id FROM sessions WHERE ended_at < $1 LIMIT $2)",
            now - keep.sessions_s,
        )
        gone += await self._delete(_OLD_TRAFFIC, now // _DAY_S)
        # Also those whose session has been forgotten, whenever they started.
        gone += await self._delete(
            "DELETE FROM execs WHERE (session_id, id) IN (SELECT session_id, id FROM execs"
            " WHERE started_at < $1 AND status <> 'running' LIMIT $2)",
            now - keep.execs_s,
        )
        return gone + await self._delete(
            "DELETE FROM execs WHERE (session_id, id) IN (SELECT session_id, id FROM execs"
            " WHERE started_at < $1 AND NOT EXISTS"
            " (SELECT 1 FROM sessions WHERE sessions.id = session_id) LIMIT $2)",
            now - keep.sessions_s,
        )

    async def _delete(self, sql: str, oldest: float) -> int:
        gone = 0
        while now_gone := await self._database.execute(sql, oldest, _PRUNE_AT_ONCE):
            gone += now_gone
        return gone

    async def aclose(self) -> None:
        await self._behind.aclose()


def _values(row: SessionRow) -> list[Any]:
    return [
        json.dumps(dict(row.labels)) if name == "labels" else _plain(getattr(row, name))
        for name in _SESSION_FIELDS
    ]


def _exec_values(row: ExecRow) -> list[Any]:
    values = {name: _plain(getattr(row, name)) for name in _EXEC_FIELDS}
    values["command"] = text_of(shortened(row.command, CODE_BYTES).text)
    values["network"] = None if row.network is None else text_of(json.dumps(to_json(row.network)))
    return [values[name] for name in _EXEC_FIELDS]


def _exec(found: Row) -> ExecRow:
    row = ExecRow(*found)
    if row.network is None:
        return row
    return replace(row, network=from_json(ExecNetwork, json.loads(found["network"]), "network"))


def _plain(value: Any) -> Any:
    """Return a value that PostgreSQL can store: one row that it refuses would keep all others that
    are written with it from being written.
    """
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, int):
        return min(max(value, -_MOST_INTEGER - 1), _MOST_INTEGER)
    return value


def _session(found: Row) -> SessionRow:
    named = {**found}
    return SessionRow(**{**named, "labels": MappingProxyType(json.loads(named["labels"]))})
