"""API keys in PostgreSQL, with a copy in memory, so that a check needs no query. Implements
`ports.Keys`.

A change is committed before it is acknowledged, and works here from then on. The database notifies
other daemons; if a notification is lost, they read the keys again within `RELOAD_S`. While the
database is unavailable, the copy is used as it is. The last use of a key is written later, with the
precision of a minute.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten_cluster_store.postgres.postgres_database import (
    RELOAD_S,
    Refresher,
    count_of,
    text_of,
)
from sandkasten_server.records.key_copies import (
    INSERT_KEY,
    KEY_COLUMNS,
    MARK_KEY_USED,
    REVOKE_KEY,
    SELECT_KEYS,
    KeyCopies,
    key_row,
    key_taken,
    key_values,
)
from sandkasten_server.records.write_behind import WriteBehind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.journal_rows import KeyRow
    from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase

_TOPIC: Final = "keys"


class PostgresKeys(KeyCopies):
    """API keys. Create with `open`."""

    def __init__(self, database: PostgresDatabase, reload_s: float) -> None:
        self._database = database
        super().__init__({}, WriteBehind(lambda rows: asyncio.ensure_future(self._used(rows))))
        self._changes = 0
        self._loading = asyncio.Lock()
        self._refresher = Refresher(database, _TOPIC, self._load, reload_s)

    @classmethod
    async def open(cls, database: PostgresDatabase, reload_s: float = RELOAD_S) -> PostgresKeys:
        keys = cls(database, reload_s)
        try:
            await keys._load()
        except BaseException:
            await keys._refresher.aclose()
            raise
        return keys

    async def add(self, row: KeyRow, hashed: bytes) -> None:
        async with self._database.transaction() as connection:
            added = count_of(await connection.execute(INSERT_KEY, *key_values(row, hashed)))
            if not added:
                raise key_taken(row)
            await connection.execute("SELECT pg_notify($1, $2)", *self._database.notice(_TOPIC))
        self._changes += 1
        self._by_hash[hashed] = row

    async def revoke(self, key_id: str, at: float) -> KeyRow | None:
        """Revoke a key and return its row; the first revocation counts. Return None if there is
        no such key.
        """
        async with self._database.transaction() as connection:
            values = await connection.fetchrow(
                f"{REVOKE_KEY} RETURNING {KEY_COLUMNS}", text_of(key_id), at
            )
            if values is None:
                return None
            await connection.execute("SELECT pg_notify($1, $2)", *self._database.notice(_TOPIC))
        hashed = bytes(values["hashed"])
        row = _newest(key_row(values), self._by_hash.get(hashed))
        self._changes += 1
        self._by_hash[hashed] = row
        return row

    async def list(self, tenant: str | None = None) -> Sequence[KeyRow]:
        await self._load()
        return self.rows_of(tenant)

    async def aclose(self) -> None:
        """Stop refreshing, and write when the keys were last used."""
        await self._refresher.aclose()
        await self._behind.aclose()

    async def _load(self) -> None:
        # One after the other, or an older answer that is late makes a revoked key valid again.
        async with self._loading:
            while True:
                changes = self._changes
                records = await self._database.fetch(SELECT_KEYS)
                if changes == self._changes:
                    break
                # Otherwise a key was changed here meanwhile, and they may be older: read again.
            before = self._by_hash
            rows = {bytes(record["hashed"]): key_row(record) for record in records}
            self._by_hash = {
                hashed: _newest(row, before.get(hashed)) for hashed, row in rows.items()
            }

    async def _used(self, rows: Sequence[KeyRow]) -> None:
        async with self._database.transaction() as connection:
            await connection.executemany(
                MARK_KEY_USED,
                sorted(((row.last_used_at, row.id) for row in rows), key=lambda used: used[1]),
            )


def _newest(row: KeyRow, copy: KeyRow | None) -> KeyRow:
    """Return the row with the later one of two last uses: the known one may not be written yet."""
    used = None if copy is None else copy.last_used_at
    if used is None or (row.last_used_at is not None and row.last_used_at >= used):
        return row
    return replace(row, last_used_at=used)
