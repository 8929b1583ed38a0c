"""Daemons divide the upkeep of shared sandboxes by leases, and a lost lease writes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandkasten.errors import Busy
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.lifecycle import State
from sandkasten_cluster_store.postgres.postgres_ledger import PostgresLedger
from sandkasten_cluster_store.postgres.shard_leases import SHARDS, ShardLeases, shard_of
from tests.patience import PATIENCE_S
from tests.store.test_directory import record

pytestmark = pytest.mark.promise("P106")
EXPIRE = "UPDATE shards SET until = now() - interval '1 s' WHERE node = $1"
DIE = "UPDATE nodes SET seen_at = now() - interval '1 hour' WHERE id = $1"


async def renewed(database, *several: ShardLeases) -> list[dict[int, int]]:
    """Renew all leases; return the fences that each node holds in the database."""
    held = []
    for leases in several:
        async with database.transaction() as connection:
            await leases.renew(connection, PATIENCE_S)
    for leases in several:
        sql = "SELECT id, fence FROM shards WHERE node = $1 AND until > now()"
        rows = await database.fetch(sql, leases.node)
        held.append({row["id"]: row["fence"] for row in rows})
    return held


async def test_a_single_daemon_holds_every_shard(open_postgres):
    database = await open_postgres()
    one = ShardLeases("one")
    assert one.lease("x") is None
    (held,) = await renewed(database, one)
    assert sorted(held) == [*range(SHARDS)]
    again = await renewed(database, one)
    assert again == [held]
    assert one.lease("x") is not None


async def test_a_second_daemon_gets_half_of_them_when_they_expire(open_postgres):
    database = await open_postgres()
    one, other = ShardLeases("one"), ShardLeases("other")
    await renewed(database, one)
    # The lease of the first lasts, and it does not renew more than its share.
    assert [len(held) for held in await renewed(database, other, one)] == [0, SHARDS]
    await database.execute("UPDATE shards SET until = now() WHERE id >= $1", SHARDS // 2)
    first, second = await renewed(database, one, other)
    assert (len(first), len(second)) == (SHARDS // 2, SHARDS // 2)
    assert sorted([*first, *second]) == [*range(SHARDS)]
    for number in range(300):
        held = [leases.lease(f"sb_{number}") is not None for leases in (one, other)]
        assert sorted(held) == [False, True]


async def test_twenty_daemons_divide_them_evenly(open_postgres):
    database = await open_postgres()
    several = [ShardLeases(f"node_{number}") for number in range(20)]
    for one in several:
        await database.execute("INSERT INTO nodes VALUES ($1, now(), true)", one.node)
    held = await renewed(database, *several)
    assert sorted(len(one) for one in held) == [0, 2, *[7] * 18]
    assert sorted(shard for one in held for shard in one) == [*range(SHARDS)]


async def test_the_shards_of_a_dead_daemon_are_taken_over_with_a_new_fence(open_postgres):
    database = await open_postgres()
    one, other = ShardLeases("one"), ShardLeases("other")
    (before,) = await renewed(database, one)
    await renewed(database, other)
    await database.execute(DIE, "one")
    assert await renewed(database, other) == [{}]
    await database.execute(EXPIRE, "one")
    (after,) = await renewed(database, other)
    assert after == {shard: fence + 1 for shard, fence in before.items()}


async def test_a_lease_that_expired_and_is_renewed_has_a_new_fence(open_postgres):
    database = await open_postgres()
    one = ShardLeases("one")
    (before,) = await renewed(database, one)
    await database.execute(EXPIRE, "one")
    assert await renewed(database, one) == [{s: fence + 1 for s, fence in before.items()}]


async def test_a_renewal_does_not_wait_for_a_shard_that_is_locked(open_postgres):
    database = await open_postgres()
    one = ShardLeases("one")
    async with database.transaction() as connection:
        await connection.execute("SELECT 1 FROM shards WHERE id = 5 FOR UPDATE")
        async with asyncio.timeout(PATIENCE_S):
            (held,) = await renewed(database, one)
        assert sorted(held) == [shard for shard in range(SHARDS) if shard != 5]
    (held,) = await renewed(database, one)
    assert len(held) == SHARDS


async def test_a_daemon_that_lost_its_lease_changes_nothing(open_postgres):
    database = await open_postgres()
    leases, backends = [ShardLeases("one"), ShardLeases("other")], frozenset({"local"})
    ledgers = [
        PostgresLedger(database, lease.node, shared=backends, leases=lease) for lease in leases
    ]
    one, other = ledgers
    row = replace(record(), backend="local")
    await one.put(row)
    await renewed(database, leases[0])
    assert one.tends(row.id)
    assert not other.tends(row.id)
    with one.fenced(row.id):
        await one.put(replace(row, state=State.DESTROYING))
        await database.execute(DIE, "one")
        await database.execute(EXPIRE, "one")
        await renewed(database, leases[1])
        for write in (one.put(replace(row, state=State.LOST)), one.drop(row.id)):
            with pytest.raises(Busy, match="another daemon looks after this sandbox now"):
                await write
    found = await other.get(row.id)
    assert found is not None
    assert found.state is State.DESTROYING
    # Requests are served for every sandbox, without a lease.
    await one.put(replace(row, state=State.LOST))
    with other.fenced(row.id):
        await other.drop(row.id)
        await other.drop(row.id)
    assert await one.get(row.id) is None


async def test_a_lease_is_not_taken_while_a_write_uses_it(open_postgres):
    """The write holds the row of the lease until it is committed."""
    database = await open_postgres()
    leases = ShardLeases("one")
    ledger = PostgresLedger(database, "one", shared=frozenset({"local"}), leases=leases)
    row = replace(record(), backend="local")
    await ledger.put(row)
    await renewed(database, leases)
    async with database.transaction() as connection:
        # Blocks the write after it has locked its lease.
        await connection.execute("SELECT 1 FROM ledger WHERE id = $1 FOR UPDATE", row.id)
        with ledger.fenced(row.id):
            writing = asyncio.create_task(ledger.drop(row.id))
        sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1"
        async with asyncio.timeout(PATIENCE_S):
            while not await database.fetch(sql, "DELETE FROM ledger%"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await database.execute(
            "UPDATE nodes SET seen_at = now() - interval '1 hour' WHERE id = 'one'"
        )
        other = ShardLeases("other")
        expired = "UPDATE shards SET until = now() - interval '1 s' WHERE id <> $1"
        await database.execute(expired, shard_of(row.id))
        (held,) = await renewed(database, other)
        assert shard_of(row.id) not in held
        assert len(held) == SHARDS - 1
    await writing
    assert await ledger.get(row.id) is None


def test_shards_of_ids_are_spread():
    counts = [0] * SHARDS
    for number in range(SHARDS * 50):
        counts[shard_of(SandboxId(f"sb_{number:08x}"))] += 1
    assert min(counts) > 10
