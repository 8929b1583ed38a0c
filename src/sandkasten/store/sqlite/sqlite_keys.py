"""API keys in SQLite, with the valid ones in memory: a check does not touch the disk. Implements
`ports.Keys`.

A change is committed durably before memory follows. So a key whose creation was acknowledged works,
and a key whose revocation was acknowledged does not, whatever happens next. The last use of a key
is written later, to the minute.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from sandkasten.errors import Conflict
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.journal_rows import KeyRow
from sandkasten.store.key_copies import KeyCopies
from sandkasten.store.write_behind import WriteBehind

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from sandkasten.model.access.tenancy import Scope
    from sandkasten.store.sqlite.database import Database

_COLUMNS: Final = (
    "hashed, id, tenant, name, scopes, created_at, expires_at, revoked_at, last_used_at,"
    " max_sessions, max_memory_bytes, max_disk_bytes, requests_per_second,"
    " max_network_connections, max_network_bandwidth_bps, max_network_bytes_per_day"
)


class SqliteKeys(KeyCopies):
    """API keys. Create with `open`."""

    def __init__(self, database: Database, known: dict[bytes, KeyRow]) -> None:
        self._database = database
        behind: WriteBehind[str, KeyRow] = WriteBehind(
            lambda rows: database.submit(lambda connection: _used(connection, rows))
        )
        super().__init__(known, behind)

    @classmethod
    async def open(cls, database: Database) -> SqliteKeys:
        def load(connection: sqlite3.Connection) -> dict[bytes, KeyRow]:
            found = connection.execute(f"SELECT {_COLUMNS} FROM keys")  # noqa: S608
            return {bytes(row[0]): _row(row) for row in found}

        return cls(database, await database.read(load))

    async def add(self, row: KeyRow, hashed: bytes) -> None:
        quota = row.quota
        values = (
            hashed,
            row.id,
            row.tenant,
            row.name,
            " ".join(sorted(row.scopes)),
            row.created_at,
            row.expires_at,
            row.revoked_at,
            row.last_used_at,
            quota.max_sessions,
            quota.max_memory_bytes,
            quota.max_disk_bytes,
            quota.requests_per_second,
            quota.max_network_connections,
            quota.max_network_bandwidth_bps,
            quota.max_network_bytes_per_day,
        )
        marks = ", ".join("?" * len(values))

        def insert(connection: sqlite3.Connection) -> None:
            taken = connection.execute(
                "SELECT 1 FROM keys WHERE id = ? OR hashed = ?", (row.id, hashed)
            ).fetchone()
            if taken is not None:
                raise Conflict(f"key {row.id} already exists", hint="make another")
            connection.execute(
                f"INSERT INTO keys ({_COLUMNS}) VALUES ({marks})",  # noqa: S608
                values,
            )

        await self._database.write(insert, lasting=True)
        self._by_hash[hashed] = row

    async def revoke(self, key_id: str, at: float) -> KeyRow | None:
        """Revoke a key and return its row; the first revocation counts. Return None if there is
        no such key.
        """
        found = [(h, row) for h, row in self._by_hash.items() if row.id == key_id]
        if not found:
            return None
        hashed, row = found[0]
        if row.revoked_at is not None:
            return row

        def end(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?", (at, key_id)
            )

        await self._database.write(end, lasting=True)
        revoked = self._by_hash[hashed] = replace(self._by_hash[hashed], revoked_at=at)
        return revoked

    async def list(self, tenant: str | None = None) -> Sequence[KeyRow]:
        rows = [row for row in self._by_hash.values() if tenant is None or row.tenant == tenant]
        return sorted(rows, key=lambda row: (row.created_at, row.id))

    async def aclose(self) -> None:
        """Write when the keys were last used."""
        await self._behind.aclose()


def _used(connection: sqlite3.Connection, rows: Sequence[KeyRow]) -> None:
    connection.executemany(
        "UPDATE keys SET last_used_at = ? WHERE id = ?", [(r.last_used_at, r.id) for r in rows]
    )


def _row(found: tuple[Any, ...]) -> KeyRow:
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
