"""The journal in SQLite: sessions, commands, traffic, and their retention. Implements
`ports.Journal`.

The audit log itself is in files (`store.audit_directory`); the journal keeps its newest hash, so
that a missing end is noticed, and the rows of versions that kept the log in a table.

Does not own the database: closing it only writes the pending rows.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from sandkasten.model.audit_records import AuditHead, AuditRow
from sandkasten.model.commands.exec_values import ExecNetwork
from sandkasten.model.journal_rows import CODE_BYTES, ExecRow, SessionRow, shortened
from sandkasten.model.json_codec import from_json, to_json
from sandkasten.store.record_rules import Retention
from sandkasten.store.write_behind import WriteBehind

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from sandkasten.model.journal_rows import SessionEnd
    from sandkasten.store.sqlite.database import Database

# Rows per transaction: other writers wait while they are deleted.
_PRUNE_AT_ONCE: Final = 5000

_SESSION = ", ".join(field.name for field in fields(SessionRow))
_EXEC_FIELDS: Final = tuple(field.name for field in fields(ExecRow))
_EXEC: Final = ", ".join(_EXEC_FIELDS)
_AUDIT: Final = "at, tenant, key_id, action, target, outcome, request_id, detail"
_SESSION_NEWER = ", ".join(f"{f.name} = excluded.{f.name}" for f in fields(SessionRow))
_EXEC_MARKS = ", ".join(f":{field.name}" for field in fields(ExecRow))
_EXEC_NEWER = ", ".join(f"{f.name} = excluded.{f.name}" for f in fields(ExecRow))

# A late row knows less: `running` never replaces an end, and nothing runs in a session that has
# ended.
_NOTE = f"""
INSERT INTO execs ({_EXEC}) VALUES ({_EXEC_MARKS})
ON CONFLICT (session_id, id) DO UPDATE SET {_EXEC_NEWER}
WHERE excluded.status <> 'running' OR execs.status = 'running'
"""  # noqa: S608  (names of fields)
_TRAFFIC = """
INSERT INTO traffic (session_id, day, tenant, bytes) VALUES (?, ?, ?, max(0, ? -
(SELECT coalesce(sum(bytes), 0) FROM traffic WHERE session_id = ? AND day <> ?)))
ON CONFLICT (session_id, day) DO UPDATE SET bytes = max(traffic.bytes, excluded.bytes)
"""
# Rows of earlier days are needed while the session lives: they add up to what it has counted.
_OLD_TRAFFIC = """
DELETE FROM traffic WHERE (session_id, day) IN (SELECT session_id, day FROM traffic
WHERE day < ? AND NOT EXISTS
(SELECT 1 FROM sessions WHERE sessions.id = session_id AND ended_at IS NULL) LIMIT ?)
"""
_DAY_S: Final = 86_400
_LOSE = """
UPDATE execs SET status = 'lost' WHERE session_id = ? AND status = 'running' AND EXISTS
(SELECT 1 FROM sessions WHERE sessions.id = session_id AND ended_at IS NOT NULL)
"""


class SqliteJournal:
    def __init__(self, database: Database, retention: Retention | None = None) -> None:
        self._database = database
        self._retention = retention if retention is not None else Retention()
        self._behind: WriteBehind[tuple[str, str], ExecRow] = WriteBehind(
            lambda rows: database.submit(lambda connection: _note(connection, rows))
        )

    # ---- sessions

    async def begin_session(self, row: SessionRow) -> None:
        values = _values(row)
        marks = ", ".join("?" * len(values))

        def begin(connection: sqlite3.Connection) -> None:
            connection.execute(
                f"INSERT INTO sessions ({_SESSION}) VALUES ({marks})"  # noqa: S608
                f" ON CONFLICT (id) DO UPDATE SET {_SESSION_NEWER} WHERE sessions.ended_at IS NULL",
                values,
            )

        await self._database.write(begin)

    async def session_runs(self, session_id: str) -> None:
        def runs(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE sessions SET status = 'running' WHERE id = ? AND ended_at IS NULL",
                (session_id,),
            )

        await self._database.write(runs)

    async def end_session(
        self, session_id: str, status: SessionEnd, at: float, reason: str = ""
    ) -> None:
        def end(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE sessions SET status = ?, ended_at = ?, reason = ?"
                " WHERE id = ? AND ended_at IS NULL",
                (status, at, _text(reason), session_id),
            )
            connection.execute(_LOSE, (session_id,))

        # Pending rows first: the running commands of the session are lost with it.
        self._behind.push()
        await self._database.write(end)

    async def session(self, session_id: str) -> SessionRow | None:
        def one(connection: sqlite3.Connection) -> SessionRow | None:
            found = connection.execute(
                f"SELECT {_SESSION} FROM sessions WHERE id = ?",  # noqa: S608
                (session_id,),
            ).fetchone()
            return None if found is None else _session(found)

        return await self._database.read(one)

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
                "(created_at, id) < (SELECT created_at, id FROM sessions WHERE id = ?)", before
            )
        return await self._sessions(where, "ORDER BY created_at DESC, id DESC", limit)

    async def open_sessions(self) -> Sequence[SessionRow]:
        where = _Where()
        where.add("ended_at IS NULL")
        return await self._sessions(where, "ORDER BY created_at, id", -1)

    async def _sessions(self, where: _Where, order: str, limit: int) -> Sequence[SessionRow]:
        sql = f"SELECT {_SESSION} FROM sessions {where} {order} LIMIT ?"  # noqa: S608

        def several(connection: sqlite3.Connection) -> Sequence[SessionRow]:
            return [_session(row) for row in connection.execute(sql, (*where.values, limit))]

        return await self._database.read(several)

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
                " WHERE session_id = ? AND id = ?)",
                session_id,
                before,
            )
        sql = (
            f"SELECT {_EXEC} FROM execs {where}"  # noqa: S608
            " ORDER BY started_at DESC, id DESC LIMIT ?"
        )

        def several(connection: sqlite3.Connection) -> Sequence[ExecRow]:
            return [_exec(row) for row in connection.execute(sql, (*where.values, limit))]

        self._behind.push()
        return await self._database.read(several)

    async def exec(self, session_id: str, exec_id: str) -> ExecRow | None:
        def one(connection: sqlite3.Connection) -> ExecRow | None:
            found = connection.execute(
                f"SELECT {_EXEC} FROM execs WHERE session_id = ? AND id = ?",  # noqa: S608
                (session_id, exec_id),
            ).fetchone()
            return None if found is None else _exec(found)

        self._behind.push()
        return await self._database.read(one)

    # ---- traffic

    async def note_traffic(self, session_id: str, tenant: str, day: int, total: int) -> None:
        def note(connection: sqlite3.Connection) -> None:
            connection.execute(_TRAFFIC, (session_id, day, tenant, total, session_id, day))

        await self._database.write(note)

    async def traffic(self, tenant: str, day: int) -> int:
        def used(connection: sqlite3.Connection) -> int:
            sql = "SELECT coalesce(sum(bytes), 0) FROM traffic WHERE tenant = ? AND day = ?"
            return int(connection.execute(sql, (tenant, day)).fetchone()[0])

        return await self._database.read(used)

    # ---- the audit log

    async def keep_audit_head(self, head: AuditHead) -> None:
        def keep(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO state VALUES ('audit_head', ?)"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (f"{head.seq} {head.hash}",),
            )

        await self._database.write(keep)

    async def audit_head(self) -> AuditHead | None:
        def one(connection: sqlite3.Connection) -> AuditHead | None:
            sql = "SELECT value FROM state WHERE name = 'audit_head'"
            found = connection.execute(sql).fetchone()
            if found is None:
                return None
            seq, _, hashed = found[0].partition(" ")
            return AuditHead(int(seq), hashed)

        return await self._database.read(one)

    async def old_audit_rows(self) -> Sequence[AuditRow]:
        """Return the rows of the table that earlier versions wrote, oldest first."""

        def several(connection: sqlite3.Connection) -> Sequence[AuditRow]:
            sql = f"SELECT {_AUDIT} FROM audit ORDER BY seq"  # noqa: S608
            return [
                replace(AuditRow(0, *found), detail=_from_json(detail))
                for *found, detail in connection.execute(sql)
            ]

        return await self._database.read(several)

    async def drop_old_audit_rows(self) -> None:
        def drop(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM audit")

        await self._database.write(drop, lasting=True)

    # ---- upkeep

    async def flush(self) -> None:
        await self._behind.flush()

    async def prune(self, now: float) -> int:
        keep = self._retention
        gone = await self._delete(
            "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE ended_at < ? LIMIT ?)",
            now - keep.sessions_s,
        )
        gone += await self._delete(_OLD_TRAFFIC, now // _DAY_S)
        # Also those whose session has been forgotten, whenever they started.
        gone += await self._delete(
            "DELETE FROM execs WHERE (session_id, id) IN (SELECT session_id, id FROM execs"
            " WHERE started_at < ? AND status <> 'running' LIMIT ?)",
            now - keep.execs_s,
        )
        return gone + await self._delete(
            "DELETE FROM execs WHERE (session_id, id) IN (SELECT session_id, id FROM execs"
            " WHERE started_at < ? AND NOT EXISTS"
            " (SELECT 1 FROM sessions WHERE sessions.id = session_id) LIMIT ?)",
            now - keep.sessions_s,
        )

    async def _delete(self, sql: str, oldest: float) -> int:
        def some(connection: sqlite3.Connection) -> int:
            return connection.execute(sql, (oldest, _PRUNE_AT_ONCE)).rowcount

        gone = 0
        while (now_gone := await self._database.write(some)) > 0:
            gone += now_gone
        return gone

    async def aclose(self) -> None:
        await self._behind.aclose()


class _Where:
    """A condition built from our own strings; values from callers are only ever bound."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.values: list[str | int] = []

    def add(self, part: str, *values: str | int) -> None:
        self._parts.append(part)
        self.values += values

    def equal(self, column: str, value: str | None) -> None:
        if value is not None:
            self.add(f"{column} = ?", value)

    def __str__(self) -> str:
        return "WHERE " + " AND ".join(self._parts) if self._parts else ""


def _values(row: SessionRow) -> tuple[Any, ...]:
    return tuple(
        _as_json(row.labels) if field.name == "labels" else getattr(row, field.name)
        for field in fields(row)
    )


def _session(found: tuple[Any, ...]) -> SessionRow:
    named = dict(zip((field.name for field in fields(SessionRow)), found, strict=True))
    return SessionRow(**{**named, "labels": _from_json(named["labels"])})


def _exec(found: tuple[Any, ...]) -> ExecRow:
    row = ExecRow(*found)
    if row.network is None:
        return row
    network = from_json(ExecNetwork, json.loads(cast("str", row.network)), "network")
    return replace(row, network=network)


def _note(connection: sqlite3.Connection, rows: Sequence[ExecRow]) -> None:
    for row in rows:
        values = {name: getattr(row, name) for name in _EXEC_FIELDS}
        values["command"] = shortened(row.command, CODE_BYTES).text
        for name in ("why", "error_name"):
            values[name] = None if values[name] is None else _text(values[name])
        values["network"] = None if row.network is None else json.dumps(to_json(row.network))
        connection.execute(_NOTE, values)
        if row.status == "running":
            connection.execute(_LOSE + " AND execs.id = ?", (row.session_id, row.id))


def _text(value: str) -> str:
    """Show bytes of a sandbox that are not valid text; the database contains only text."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _as_json(value: Mapping[str, str]) -> str:
    return json.dumps(dict(value), separators=(",", ":"))


def _from_json(text: str) -> Mapping[str, str]:
    return MappingProxyType(cast("dict[str, str]", json.loads(text)))
