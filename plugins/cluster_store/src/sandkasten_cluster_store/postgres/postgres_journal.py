"""The journal in PostgreSQL (`records.sql_journal`): sessions and commands of all daemons.

Each daemon settles the sessions that it began itself (`node`); history and traffic are read across
all of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from sandkasten_cluster_store.postgres.postgres_database import ALIVE
from sandkasten_server.records.sql_journal import (
    LOSE_EXEC,
    LOSE_EXECS,
    NOTE_EXEC,
    Condition,
    SqlJournal,
    exec_values,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.journal_rows import ExecRow
    from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase
    from sandkasten_runtime.store.record_rules import Retention
    from sandkasten_server.records.write_behind import WriteBehind

# Locks the sessions, so that none of them ends before its commands are written.
_HOLD: Final = "SELECT 1 FROM sessions WHERE id = ANY($1) ORDER BY id FOR SHARE"
# A daemon that was down for so long finds what is left of its sandboxes without a row, and removes
# it. Its position in the audit log stays, or its records would be copied twice.
_OLD_NODES: Final = """
WITH gone AS (DELETE FROM nodes WHERE seen_at < to_timestamp($1) RETURNING id),
rows AS (DELETE FROM ledger USING gone WHERE ledger.node = gone.id AND NOT ledger.shared),
kept AS (DELETE FROM state USING gone WHERE state.node = gone.id AND state.name <> 'audit_copied')
UPDATE sessions SET status = 'lost', ended_at = $2, reason = 'its daemon did not come back'
FROM gone WHERE sessions.node = gone.id AND ended_at IS NULL AND NOT EXISTS
(SELECT 1 FROM ledger WHERE ledger.id = sessions.id AND ledger.shared)
RETURNING sessions.id
"""


def postgres_journal(
    database: PostgresDatabase,
    node: str,
    retention: Retention | None = None,
    *,
    shared: frozenset[str] = frozenset(),
) -> SqlJournal:
    """`shared`: backends whose sandboxes every daemon can reach."""
    return SqlJournal(PostgresJournalDriver(database, node, shared), retention)


class PostgresJournalDriver:
    """Implements `records.sql_journal.JournalDriver`."""

    def __init__(self, database: PostgresDatabase, node: str, shared: frozenset[str]) -> None:
        self._database = database
        self._node = node
        self._shared = shared
        self.own_columns: Mapping[str, object] = {"node": node}

    async def fetch(self, sql: str, *values: object) -> Sequence[Sequence[Any]]:
        return await self._database.fetch(sql, *values)

    async def execute(self, sql: str, *values: object) -> int:
        return await self._database.execute(sql, *values)

    @property
    def own_sessions(self) -> Condition:
        """Return those that this node began, and those of shared backends that a dead one began."""
        alive = ALIVE.format(node="sessions.node")
        sql = f"ended_at IS NULL AND (node = $1 OR backend = ANY($2) AND NOT {alive})"
        return Condition(sql, (self._node, [*self._shared]))

    async def settle(self, pending: WriteBehind[tuple[str, str], ExecRow]) -> None:
        await pending.flush()

    def note_execs(self, rows: Sequence[ExecRow]) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._note(rows))

    async def _note(self, rows: Sequence[ExecRow]) -> None:
        # In one order, or two such transactions with the same rows wait for each other.
        ordered = sorted(rows, key=lambda row: (row.session_id, row.id))
        running = [(row.session_id, row.id) for row in ordered if row.status == "running"]
        async with self._database.transaction() as connection:
            await connection.execute(_HOLD, sorted({row.session_id for row in rows}))
            await connection.executemany(NOTE_EXEC, [exec_values(row) for row in ordered])
            if running:
                await connection.executemany(LOSE_EXEC, running)

    async def end_session(self, session_id: str, status: str, at: float, reason: str) -> None:
        await self._database.execute(
            "SELECT end_session($1, $2, $3, $4)", session_id, status, at, reason
        )

    async def keep(self, name: str, value: str) -> None:
        await self._database.execute(
            "INSERT INTO state (node, name, value) VALUES ($1, $2, $3)"
            " ON CONFLICT (node, name) DO UPDATE SET value = excluded.value",
            self._node,
            name,
            value,
        )

    async def kept(self, name: str) -> str | None:
        row = await self._database.fetch_one(
            "SELECT value FROM state WHERE node = $1 AND name = $2", self._node, name
        )
        return None if row is None else row["value"]

    async def end_abandoned(self, now: float, not_seen_since: float) -> None:
        for row in await self._database.write(_OLD_NODES, not_seen_since, now):
            await self._database.execute(LOSE_EXECS, row["id"])
