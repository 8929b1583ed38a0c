"""The copies of API keys in memory that a request is checked against: no disk, no database.

The stores of keys fill them, from rows of the table `keys` that all databases have. The statements
are in the part of SQL that SQLite and PostgreSQL share, as those of the journal are. A use of a key
is passed on to be written, at most once a minute.
"""

from __future__ import annotations

import hmac
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any, Final, cast

from sandkasten.errors import Conflict
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.journal_rows import KeyRow
from sandkasten_server.records.sql_journal import storable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.access.tenancy import Scope
    from sandkasten_server.records.write_behind import WriteBehind

_USED_EVERY_S: Final = 60.0
KEY_COLUMNS: Final = (
    "hashed, id, tenant, name, scopes, created_at, expires_at, revoked_at, last_used_at,"
    " max_sessions, max_memory_bytes, max_disk_bytes, requests_per_second,"
    " max_network_connections, max_network_bandwidth_bps, max_network_bytes_per_day"
)
"""As `key_values` and `key_row` have them."""
_MARKS: Final = ", ".join(f"${number}" for number in range(1, KEY_COLUMNS.count(",") + 2))
INSERT_KEY: Final = f"INSERT INTO keys ({KEY_COLUMNS}) VALUES ({_MARKS}) ON CONFLICT DO NOTHING"  # noqa: S608
"""Changes nothing if the id or the hash exists."""
SELECT_KEYS: Final = f"SELECT {KEY_COLUMNS} FROM keys"  # noqa: S608
# The first revocation counts, and the latest use.
REVOKE_KEY: Final = "UPDATE keys SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1"
MARK_KEY_USED: Final = """
UPDATE keys SET last_used_at = $1 WHERE id = $2 AND (last_used_at IS NULL OR last_used_at < $1)
"""


class KeyCopies:
    """The part of `ports.Keys` that answers from memory."""

    def __init__(self, by_hash: dict[bytes, KeyRow], behind: WriteBehind[str, KeyRow]) -> None:
        self._by_hash = by_hash
        self._behind = behind

    def check(self, hashed: bytes, now: float) -> KeyRow | None:
        # A lookup by hash leaks nothing useful: a caller who can choose a hash that shares bytes
        # with another has no key that produces it.
        row = self._by_hash.get(hashed)
        expected = hashed if row is not None else bytes(len(hashed))
        if not hmac.compare_digest(expected, hashed) or row is None:
            return None
        if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
            return None
        if row.last_used_at is None or now - row.last_used_at >= _USED_EVERY_S:
            row = self._by_hash[hashed] = replace(row, last_used_at=now)
            self._behind.put(row.id, row)
        return row

    def any_living(self, now: float) -> bool:
        return any(
            row.revoked_at is None and (row.expires_at is None or row.expires_at > now)
            for row in self._by_hash.values()
        )

    def any_made(self) -> bool:
        return bool(self._by_hash)

    def rows_of(self, tenant: str | None) -> list[KeyRow]:
        """Return the keys of a tenant, or those of all."""
        rows = [row for row in self._by_hash.values() if tenant is None or row.tenant == tenant]
        return sorted(rows, key=lambda row: (row.created_at, row.id))


def key_taken(row: KeyRow) -> Conflict:
    return Conflict(f"key {row.id} already exists", hint="make another")


def key_values(row: KeyRow, hashed: bytes) -> tuple[Any, ...]:
    return (
        hashed,
        row.id,
        row.tenant,
        storable(row.name),
        " ".join(sorted(row.scopes)),
        row.created_at,
        row.expires_at,
        row.revoked_at,
        row.last_used_at,
        *astuple(row.quota),
    )


def key_row(values: Sequence[Any]) -> KeyRow:
    (_, key_id, tenant, name, scopes, created, expires, revoked, used, *quota) = values
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
