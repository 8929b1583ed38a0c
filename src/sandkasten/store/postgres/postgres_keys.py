"""API keys in PostgreSQL, with a copy in memory, so that a check needs no query. Implements
`ports.Keys`.

A change is committed before it is acknowledged, and works here from then on. The database notifies
other daemons; if a notification is lost, they read the keys again within `RELOAD_S`. While the
database is unavailable, the copy is used as it is. The last use of a key is written later, with the
precision of a minute.
"""

from __future__ import annotations

import asyncio
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Final, cast

from sandkasten.errors import Conflict
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.journal_rows import KeyRow
from sandkasten.store.key_copies import KeyCopies
from sandkasten.store.postgres.postgres_database import RELOAD_S, Refresher, text_of
from sandkasten.store.write_behind import WriteBehind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.access.tenancy import Scope
    from sandkasten.store.postgres.postgres_database import PostgresDatabase, Row

_TOPIC: Final = "keys"
_COLUMNS: Final = (
    "hashed, id, tenant, name, scopes, created_at, expires_at, revoked_at, last_used_at,"
    " max_sessions, max_memory_bytes, max_disk_bytes, requests_per_second,"
    " max_network_connections, max_network_bandwidth_bps, max_network_bytes_per_day"
)
_MARKS: Final = ", ".join(f"${number}" for number in range(1, _COLUMNS.count(",") + 2))


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
        one = cls(database, reload_s)
        try:
            await one._load()
        except BaseException:
            await one._refresher.aclose()
            raise
        return one

    async def add(self, row: KeyRow, hashed: bytes) -> None:
        async with self._database.transaction() as connection:
            added = await connection.fetchval(
                f"INSERT INTO keys ({_COLUMNS}) VALUES ({_MARKS})"  # noqa: S608
                " ON CONFLICT DO NOTHING RETURNING id",
                hashed,
                row.id,
                row.tenant,
                text_of(row.name),
                " ".join(sorted(row.scopes)),
                row.created_at,
                row.expires_at,
                row.revoked_at,
                row.last_used_at,
                *astuple(row.quota),
            )
            if added is None:
                raise Conflict(f"key {row.id} already exists", hint="make another")
            await connection.execute("SELECT pg_notify($1, $2)", *self._database.notice(_TOPIC))
        self._changes += 1
        self._by_hash[hashed] = row

    async def revoke(self, key_id: str, at: float) -> KeyRow | None:
        """Revoke a key and return its row; the first revocation counts. Return None if there is
        no such key.
        """
        async with self._database.transaction() as connection:
            found = await connection.fetchrow(
                "UPDATE keys SET revoked_at = coalesce(revoked_at, $2)"  # noqa: S608
                f" WHERE id = $1 RETURNING {_COLUMNS}",
                text_of(key_id),
                at,
            )
            if found is None:
                return None
            await connection.execute("SELECT pg_notify($1, $2)", *self._database.notice(_TOPIC))
        hashed = bytes(found["hashed"])
        row = _newest(_row(found), self._by_hash.get(hashed))
        self._changes += 1
        self._by_hash[hashed] = row
        return row

    async def list(self, tenant: str | None = None) -> Sequence[KeyRow]:
        await self._load()
        rows = [row for row in self._by_hash.values() if tenant is None or row.tenant == tenant]
        return sorted(rows, key=lambda row: (row.created_at, row.id))

    async def aclose(self) -> None:
        """Stop refreshing, and write when the keys were last used."""
        await self._refresher.aclose()
        await self._behind.aclose()

    async def _load(self) -> None:
        # One after the other, or an older answer that is late makes a revoked key valid again.
        async with self._loading:
            while True:
                changes = self._changes
                found = await self._database.fetch(f"SELECT {_COLUMNS} FROM keys")  # noqa: S608
                if changes == self._changes:
                    break
                # Otherwise a key was changed here meanwhile, and `found` may be older: read again.
            before = self._by_hash
            rows = {bytes(one["hashed"]): _row(one) for one in found}
            self._by_hash = {
                hashed: _newest(row, before.get(hashed)) for hashed, row in rows.items()
            }

    async def _used(self, rows: Sequence[KeyRow]) -> None:
        async with self._database.transaction() as connection:
            await connection.executemany(
                "UPDATE keys SET last_used_at = greatest(last_used_at, $1) WHERE id = $2",
                sorted(((row.last_used_at, row.id) for row in rows), key=lambda one: one[1]),
            )


def _newest(row: KeyRow, known: KeyRow | None) -> KeyRow:
    """Return the row with the later one of two last uses: the known one may not be written yet."""
    used = None if known is None else known.last_used_at
    if used is None or (row.last_used_at is not None and row.last_used_at >= used):
        return row
    return replace(row, last_used_at=used)


def _row(found: Row) -> KeyRow:
    (_, key_id, tenant, name, scopes, created, expires, revoked, used, *quota) = found
    return KeyRow(
        id=key_id,
        tenant=tenant,
        name=name,
        scopes=cast("frozenset[Scope]", frozenset(scopes.split())),
        created_at=created,
        quota=TenantQuota(*quota),
        expires_at=expires,
        revoked_at=revoked,
        last_used_at=used,
    )
