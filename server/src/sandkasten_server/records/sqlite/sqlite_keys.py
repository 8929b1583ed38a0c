"""API keys in SQLite, with the valid ones in memory: a check does not touch the disk. Implements
`ports.Keys`.

A change is committed durably before memory follows. So a key whose creation was acknowledged works,
and a key whose revocation was acknowledged does not, whatever happens next. The last use of a key
is written later, to the minute.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten_server.records.key_copies import (
    INSERT_KEY,
    MARK_KEY_USED,
    REVOKE_KEY,
    SELECT_KEYS,
    KeyCopies,
    key_row,
    key_taken,
    key_values,
)
from sandkasten_server.records.sqlite.sqlite_journal import run
from sandkasten_server.records.write_behind import WriteBehind

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from sandkasten.model.journal_rows import KeyRow
    from sandkasten_server.records.sqlite.database import Database


class SqliteKeys(KeyCopies):
    """API keys. Create with `open`."""

    def __init__(self, database: Database, by_hash: dict[bytes, KeyRow]) -> None:
        self._database = database
        behind: WriteBehind[str, KeyRow] = WriteBehind(
            lambda rows: database.submit(lambda connection: _used(connection, rows))
        )
        super().__init__(by_hash, behind)

    @classmethod
    async def open(cls, database: Database) -> SqliteKeys:
        def load(connection: sqlite3.Connection) -> dict[bytes, KeyRow]:
            return {bytes(row[0]): key_row(row) for row in connection.execute(SELECT_KEYS)}

        return cls(database, await database.read(load))

    async def add(self, row: KeyRow, hashed: bytes) -> None:
        values = key_values(row, hashed)

        def insert(connection: sqlite3.Connection) -> None:
            if run(connection, INSERT_KEY, values).rowcount == 0:
                raise key_taken(row)

        await self._database.write(insert, lasting=True)
        self._by_hash[hashed] = row

    async def revoke(self, key_id: str, at: float) -> KeyRow | None:
        """Revoke a key and return its row; the first revocation counts. Return None if there is
        no such key.
        """
        matches = [(h, row) for h, row in self._by_hash.items() if row.id == key_id]
        if not matches:
            return None
        hashed, row = matches[0]
        if row.revoked_at is not None:
            return row

        def end(connection: sqlite3.Connection) -> None:
            run(connection, REVOKE_KEY, (key_id, at))

        await self._database.write(end, lasting=True)
        revoked = self._by_hash[hashed] = replace(self._by_hash[hashed], revoked_at=at)
        return revoked

    async def list(self, tenant: str | None = None) -> Sequence[KeyRow]:
        return self.rows_of(tenant)

    async def aclose(self) -> None:
        """Write when the keys were last used."""
        await self._behind.aclose()


def _used(connection: sqlite3.Connection, rows: Sequence[KeyRow]) -> None:
    for row in rows:
        run(connection, MARK_KEY_USED, (row.last_used_at, row.id))
