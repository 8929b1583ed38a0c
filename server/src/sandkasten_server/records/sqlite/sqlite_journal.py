"""The journal in SQLite (`records.sql_journal`), and the audit rows that older versions kept in a
table.
"""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sandkasten.model.audit_records import AuditRow
from sandkasten_server.records.sql_journal import (
    LOSE_EXEC,
    LOSE_EXECS,
    NOTE_EXEC,
    Condition,
    SqlJournal,
    exec_values,
)

if TYPE_CHECKING:
    import asyncio
    import sqlite3
    from collections.abc import Mapping, Sequence

    from sandkasten.model.journal_rows import ExecRow
    from sandkasten_runtime.store.record_rules import Retention
    from sandkasten_server.records.sqlite.database import Database
    from sandkasten_server.records.write_behind import WriteBehind

_AUDIT: Final = "at, tenant, key_id, action, target, outcome, request_id, detail"


def sqlite_journal(database: Database, retention: Retention | None = None) -> SqlJournal:
    return SqlJournal(_SqliteDriver(database), retention)


class _SqliteDriver:
    """Implements `records.sql_journal.JournalDriver`."""

    own_columns: Mapping[str, object] = MappingProxyType({})
    own_sessions = Condition("ended_at IS NULL")

    def __init__(self, database: Database) -> None:
        self._database = database

    async def fetch(self, sql: str, *values: object) -> Sequence[Sequence[Any]]:
        return await self._database.read(lambda connection: run(connection, sql, values).fetchall())

    async def execute(self, sql: str, *values: object) -> int:
        return await self._database.write(lambda connection: run(connection, sql, values).rowcount)

    async def settle(self, pending: WriteBehind[tuple[str, str], ExecRow]) -> None:
        # The database does its work in order. A full disk does not stop reading.
        pending.push()

    def note_execs(self, rows: Sequence[ExecRow]) -> asyncio.Future[None]:
        def note(connection: sqlite3.Connection) -> None:
            for row in rows:
                run(connection, NOTE_EXEC, exec_values(row))
                if row.status == "running":
                    run(connection, LOSE_EXEC, (row.session_id, row.id))

        return self._database.submit(note)

    async def end_session(self, session_id: str, status: str, at: float, reason: str) -> None:
        def end(connection: sqlite3.Connection) -> None:
            sql = (
                "UPDATE sessions SET status = $1, ended_at = $2, reason = $3"
                " WHERE id = $4 AND ended_at IS NULL"
            )
            run(connection, sql, (status, at, reason, session_id))
            run(connection, LOSE_EXECS, (session_id,))

        await self._database.write(end)

    async def keep(self, name: str, value: str) -> None:
        await self.execute(
            "INSERT INTO state VALUES ($1, $2)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            name,
            value,
        )

    async def kept(self, name: str) -> str | None:
        rows = await self.fetch("SELECT value FROM state WHERE name = $1", name)
        return rows[0][0] if rows else None

    async def end_abandoned(self, now: float, not_seen_since: float) -> None:
        return None


async def old_audit_rows(database: Database) -> Sequence[AuditRow]:
    """Return the rows of the table that earlier versions wrote, oldest first."""

    def select(connection: sqlite3.Connection) -> Sequence[AuditRow]:
        sql = f"SELECT {_AUDIT} FROM audit ORDER BY seq"  # noqa: S608
        return [
            replace(AuditRow(0, *values), detail=MappingProxyType(json.loads(detail)))
            for *values, detail in connection.execute(sql)
        ]

    return await database.read(select)


async def drop_old_audit_rows(database: Database) -> None:
    def drop(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM audit")

    await database.write(drop, lasting=True)


def run(connection: sqlite3.Connection, sql: str, values: Sequence[object]) -> sqlite3.Cursor:
    """Run a statement with numbered parameters, which are names to this library."""
    return connection.execute(sql, {f"{at}": value for at, value in enumerate(values, 1)})
