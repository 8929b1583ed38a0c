"""The ledger in PostgreSQL, used by several daemons."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from sandkasten.disk.process_identity import ProcessIdentity, boot_id
from sandkasten.model.access.tenancy import TenantTally
from sandkasten.model.sandbox.lifecycle import State
from sandkasten_cluster_store.postgres import postgres_ledger
from sandkasten_cluster_store.postgres.postgres_ledger import PostgresLedger
from sandkasten_runtime.engine.owner import owner_gone
from tests.store.test_directory import record

pytestmark = pytest.mark.promise("P98")


async def test_each_node_has_its_own_sandboxes(open_postgres):
    one = PostgresLedger(await open_postgres(), "node_1")
    other = PostgresLedger(await open_postgres(), "node_2")
    mine = record("key")
    await one.put(mine)
    assert (await other.get(mine.id), await other.find_key("key"), list(await other.list())) == (
        None,
        None,
        [],
    )
    await other.drop(mine.id)
    assert list(await one.list()) == [mine]
    assert await one.list() is await one.list()


async def test_a_clock_that_was_wrong_at_the_start_is_forgotten(open_postgres, monkeypatch):
    shared, real = frozenset({"local"}), time.time
    one = PostgresLedger(await open_postgres(), "node_0", shared=shared)
    made = replace(record("key", real() - 100.0), boot_id="another boot")
    await one.put(made)
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    other = PostgresLedger(await open_postgres(), "node_1", shared=shared)

    async def ages() -> list[float]:
        found = [await other.get(made.id), *await other.list()]
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return [now - row.created_boottime for row in found if row is not None]

    assert [age > 3600 for age in await ages()] == [True, True]
    monkeypatch.setattr(time, "time", real)
    assert [100 <= age < 3600 for age in await ages()] == [True, True]
    assert await other.list() is await other.list()


async def test_a_shared_sandbox_is_that_of_every_daemon(open_postgres):
    """Its row is converted: the reader has another boot, and cannot look up its creator."""
    databases = [await open_postgres() for _ in range(2)]
    one, other = (
        PostgresLedger(database, f"node_{number}", shared=frozenset({"local"}))
        for number, database in enumerate(databases)
    )
    alone = PostgresLedger(databases[1], "node_3")
    await databases[0].live_as("node_0")
    elsewhere = ProcessIdentity(7, 8, "another boot")
    made = replace(
        record("key", time.time() - 100.0),
        state=State.CREATING,
        boot_id=elsewhere.boot_id,
        owner_pid=elsewhere.pid,
        owner_start=elsewhere.start,
    )
    await one.put(made)
    assert (await alone.get(made.id), await alone.find_key("key")) == (None, None)
    (found,) = await other.list()
    assert (found, await other.find_key("key")) == (await other.get(made.id), found)
    assert found.boot_id == boot_id()
    assert time.clock_gettime(time.CLOCK_BOOTTIME) - found.created_boottime >= 100.0
    assert not owner_gone(found)
    assert owner_gone(other.converted(made, "node_0", alive=False))
    assert owner_gone(one.converted(made, "node_0", alive=True))
    # Another daemon changes it, and removes it.
    await other.put(replace(found, state=State.RUNNING))
    (running,) = await one.list()
    assert running.state is State.RUNNING
    await one.drop(made.id)
    assert list(await other.list()) == []


async def test_changes_of_another_process_of_the_node_are_listed_at_once(open_postgres):
    one, other = [PostgresLedger(await open_postgres(), "node_1") for _ in range(2)]
    first, second = record(created_at=1.0), record(created_at=2.0)
    await one.put(second)
    assert list(await other.list()) == [second]
    await one.put(first)
    changed = replace(second, labels={})
    await one.put(changed)
    assert list(await other.list()) == [first, changed]
    await one.drop(first.id)
    assert list(await other.list()) == [changed]


async def test_many_changed_rows_are_read_in_parts(open_postgres, monkeypatch):
    database = await open_postgres()
    one, other = PostgresLedger(database, "node_1"), PostgresLedger(database, "node_1")
    rows = [record(created_at=float(number)) for number in range(5)]
    for row in rows:
        await one.put(row)
    monkeypatch.setattr(postgres_ledger, "_READ_AT_ONCE", 2)
    fetch, sizes = database.fetch, []

    async def counted(sql, *values):
        found = await fetch(sql, *values)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(database, "fetch", counted)
    assert list(await other.list()) == rows
    assert sizes == [5, 2, 2, 1]


async def test_an_old_list_that_is_late_does_not_replace_a_new_one(open_postgres, monkeypatch):
    database = await open_postgres()
    ledger = PostgresLedger(database, "node_1")
    first, second = record(created_at=1.0), record(created_at=2.0)
    await ledger.put(first)
    fetch, begun, go_on = database.fetch, asyncio.Event(), asyncio.Event()

    async def held(sql, *values):
        found = await fetch(sql, *values)
        if not begun.is_set():
            begun.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(database, "fetch", held)
    late = asyncio.create_task(ledger.list())
    await begun.wait()
    await ledger.put(second)
    assert list(await ledger.list()) == [first, second]
    go_on.set()
    assert list(await late) == [first, second]


async def test_the_database_counts_the_sandboxes_of_a_tenant(open_postgres):
    database = await open_postgres()
    store = PostgresLedger(database, "node_1", shared=frozenset({"oci"}))
    other = PostgresLedger(database, "node_2", shared=frozenset({"oci"}))
    one = replace(record(), tenant="t")
    size = one.limits
    another = replace(record(), tenant="t", workspace_id="named", state=State.CREATING)
    for row in (
        one,
        another,
        replace(record(), tenant="t", state=State.LOST),
        replace(record(), tenant="t", acquired="spare"),
        replace(record(), tenant="t", acquired="internal"),
        record(),
    ):
        await store.put(row)
    await other.put(replace(record(), tenant="t"))
    two = TenantTally(2, 2 * size.memory_bytes, size.workspace_bytes)
    assert await store.tally("t") == two
    shared = replace(record(), tenant="t", backend="oci")
    await other.put(shared)
    three = TenantTally(3, 3 * size.memory_bytes, 2 * size.workspace_bytes)
    assert await store.tally("t") == three
    await store.put(replace(shared, state=State.LOST))
    assert await store.tally("t") == two
    await database.execute("UPDATE ledger SET row = '{' WHERE id = $1", another.id)
    await store.drop(one.id)
    assert await store.tally("t") == await store.tally("nobody") == TenantTally()


async def test_a_damaged_row_is_reported_and_treated_as_missing(open_postgres):
    database = await open_postgres()
    store = PostgresLedger(database, "node_1")
    good, bad = record(), record("key")
    await store.put(good)
    for damage in ("", "{", "[]", "null", '{"id": "sbx_00"}', "[" * 100_000):
        await store.put(bad)
        await database.execute("UPDATE ledger SET row = $2 WHERE id = $1", bad.id, damage)
        assert await store.get(bad.id) is None
        assert await store.find_key("key") is None
        assert list(await store.list()) == [good]
        assert list(await store.corrupt()) == [bad.id]
    await store.drop(bad.id)
    assert list(await store.corrupt()) == []
