"""API keys in PostgreSQL, used by several daemons."""

from __future__ import annotations

import asyncio

import pytest

from plugins.cluster_store.tests.postgres.rows import until
from sandkasten.model.access.api_keys import DEFAULT_SCOPES, make_key
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.journal_rows import KeyRow
from sandkasten_cluster_store.postgres.postgres_database import Refresher
from sandkasten_cluster_store.postgres.postgres_keys import PostgresKeys
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P98")


async def test_a_revoked_key_stops_working_at_every_daemon(open_postgres):
    one, other = [await PostgresKeys.open(await open_postgres(), reload_s=60) for _ in range(2)]
    made = make_key()
    await one.add(KeyRow(made.id, "t", "n", DEFAULT_SCOPES, 1.0, TenantQuota()), made.hashed)
    await until(lambda: other.check(made.hashed, 2.0) is not None)
    await other.revoke(made.id, 3.0)
    assert other.check(made.hashed, 4.0) is None
    await until(lambda: one.check(made.hashed, 4.0) is None)
    for keys in (one, other):
        await keys.aclose()


async def test_keys_are_read_again_if_a_notice_was_lost(open_postgres):
    one, database = await open_postgres(), await open_postgres()
    keys = await PostgresKeys.open(one, reload_s=60)
    made = make_key()
    pid = await one.in_session("SELECT pg_backend_pid()")
    writer = await PostgresKeys.open(database)
    await database.execute("SELECT pg_terminate_backend($1)", pid)
    await writer.add(KeyRow(made.id, "t", "n", DEFAULT_SCOPES, 1.0, TenantQuota()), made.hashed)
    await until(lambda: keys.check(made.hashed, 2.0) is not None)
    for some in (keys, writer):
        await some.aclose()


async def test_a_late_answer_does_not_make_a_revoked_key_valid_again(open_postgres):
    database, other = await open_postgres(), await open_postgres()
    keys = await PostgresKeys.open(database, reload_s=60)
    made = make_key()
    await keys.add(KeyRow(made.id, "t", "n", DEFAULT_SCOPES, 1.0, TenantQuota()), made.hashed)
    fetch, late, arrived = database.fetch, asyncio.Event(), []

    async def fetch_late(sql: str, *values: object):
        found = await fetch(sql, *values)
        arrived.append(sql)
        if len(arrived) == 1:
            await late.wait()
        return found

    database.fetch = fetch_late
    first = asyncio.create_task(keys.list())
    await until(lambda: arrived)
    await other.execute("UPDATE keys SET revoked_at = 2.0")
    second = asyncio.create_task(keys.list())
    # The second answer has time to overtake the first one.
    await asyncio.wait([second], timeout=0.2)
    late.set()
    await asyncio.gather(first, second)
    assert keys.check(made.hashed, 3.0) is None
    await keys.aclose()


async def test_an_unexpected_error_ends_neither_session_nor_copies(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    connect = one._connect
    failed: list[bool] = []
    loaded: list[bool] = []

    async def fail_once():
        if not failed:
            failed.append(True)
            raise BufferError
        return await connect()

    async def load() -> None:
        loaded.append(True)
        if len(loaded) == 1:
            raise ValueError

    one._connect = fail_once
    refresher = Refresher(one, "x", load, every_s=60)
    notify = ("SELECT pg_notify($1, $2)", *one.notice("x"))
    await other.execute(*notify)
    await until(lambda: len(loaded) == 1)
    await other.execute(*notify)
    await until(lambda: len(loaded) == 2)
    pid = await one.in_session("SELECT pg_backend_pid()")
    await other.execute("SELECT pg_terminate_backend($1)", pid)
    await until(lambda: one.locks.losses == 1)
    async with one.locks.hold("x", PATIENCE_S):
        assert failed
    await refresher.aclose()
