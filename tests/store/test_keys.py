"""Keys in SQLite and PostgreSQL: acknowledged changes survive a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import Conflict
from sandkasten.model.access.api_keys import DEFAULT_SCOPES, hash_key, make_key
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.journal_rows import KeyRow
from sandkasten_server.records.sqlite.database import Database
from sandkasten_server.records.sqlite.sqlite_keys import SqliteKeys

if TYPE_CHECKING:
    import sqlite3

QUOTA = TenantQuota(3, 1 << 40, 1 << 41, 2.5)


@pytest.fixture
async def database(tmp_path):
    one = await Database.open(tmp_path / "a.db")
    yield one
    await one.aclose()


@pytest.fixture
async def open_keys(database):
    """Return a function that opens the keys, as another process would."""
    opened = []

    async def open_again():
        opened.append(await SqliteKeys.open(database))
        return opened[-1]

    yield open_again
    for one in opened:
        await one.aclose()


def row(key_id: str, **more) -> KeyRow:
    return KeyRow(
        key_id,
        more.pop("tenant", "t"),
        "name",
        DEFAULT_SCOPES,
        10.0,
        more.pop("quota", QUOTA),
        **more,
    )


async def test_a_key_works_from_creation_to_revocation(open_keys):
    keys = await open_keys()
    made = make_key()
    assert keys.check(made.hashed, 11.0) is None
    await keys.add(row(made.id, expires_at=100.0), made.hashed)
    found = keys.check(hash_key(made.text), 11.0)
    assert found == row(made.id, expires_at=100.0, last_used_at=11.0)
    assert keys.check(made.hashed, 100.0) is None
    assert keys.check(b"", 11.0) is None
    with pytest.raises(Conflict):
        await keys.add(row(made.id), make_key().hashed)


async def test_keys_survive_a_restart_and_only_their_hash_is_stored(open_keys, tmp_path):
    keys = await open_keys()
    kept, ended = make_key(), make_key()
    await keys.add(row(kept.id), kept.hashed)
    await keys.add(row(ended.id, tenant="u"), ended.hashed)
    keys.check(kept.hashed, 20.0)
    revoked = await keys.revoke(ended.id, 30.0)
    assert revoked is not None
    assert revoked.revoked_at == 30.0
    assert await keys.revoke(ended.id, 40.0) == revoked
    assert await keys.revoke("key_unknown", 40.0) is None
    await keys.aclose()
    again = await open_keys()
    assert again.check(ended.hashed, 31.0) is None
    assert await again.list("t") == [row(kept.id, last_used_at=20.0)]
    assert await again.list() == [
        *sorted([row(kept.id, last_used_at=20.0), revoked], key=lambda one: one.id)
    ]
    assert again.check(kept.hashed, 31.0) is not None
    for path in tmp_path.iterdir():
        assert kept.text.encode() not in path.read_bytes()


async def test_a_key_that_could_not_be_written_does_not_work(database):
    keys = await SqliteKeys.open(database)
    made = make_key()

    def full(connection: sqlite3.Connection) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()

    await database.read(full)
    huge = KeyRow(made.id, "t", "n" * 100_000, DEFAULT_SCOPES, 1.0, QUOTA)
    with pytest.raises(Exception, match="full"):
        await keys.add(huge, made.hashed)
    assert keys.check(made.hashed, 2.0) is None
    assert await keys.list() == []
