"""Two engines on one database and one backend that both can reach: each serves every sandbox."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandkasten.errors import InvalidConfiguration, QuotaExceeded, SessionExpired
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_cluster_store.postgres.postgres_ledger import PostgresLedger
from sandkasten_runtime.assembly import engine_assembly
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.engine.lifecycle import sandboxes
from sandkasten_runtime.store.ledger_rows import decode_row, encode_row
from tests.api.daemon_in_process import serving

pytestmark = pytest.mark.promise("P98")


@pytest.fixture
def engines(replicas):
    return [one.engine for one in replicas]


@pytest.mark.promise("P106")
async def test_each_engine_reaps_its_part_and_inherits_that_of_a_dead_one(replicas):
    first, second = replicas
    database = second.shared.database
    made = [(await first.engine.create(CreateRequest())).id for _ in range(12)]
    for one in replicas:
        await one.renew()
    parts = [{the_id for the_id in made if one.leases.lease(the_id)} for one in replicas]
    assert parts[0] | parts[1] == set(made)
    assert not parts[0] & parts[1]
    for the_id in made:
        await (await first.backend.attach(the_id)).crash()
    assert {*(await second.engine.sweep()).dead} == parts[1]
    assert {*(await second.engine.sweep()).dead} == set()
    # The first one dies: the second takes over its leases when they end.
    die = "UPDATE nodes SET seen_at = now() - interval '1 hour' WHERE id = $1"
    await database.execute(die, first.shared.node)
    expire = "UPDATE shards SET until = now() - interval '1 s' WHERE node = $1"
    await database.execute(expire, first.shared.node)
    await second.renew()
    assert {*(await second.engine.sweep()).dead} == parts[0]


@pytest.mark.promise("P106")
async def test_pooled_sandboxes_of_a_killed_daemon_are_removed_by_the_one_that_follows_it(replicas):
    """Only that one knows: to others, the node lives on."""
    first, second = replicas
    database = first.shared.database
    made = [(await first.engine.create(CreateRequest())).id for _ in range(8)]
    for found in await database.fetch("SELECT id, row FROM ledger"):
        record = decode_row(found["row"].encode())
        row = encode_row(replace(record, acquired="spare", owner_start=1)).decode()
        await database.execute("UPDATE ledger SET row = $2 WHERE id = $1", found["id"], row)
    for one in replicas:
        await one.renew()
    assert [the_id for the_id in made if second.leases.lease(the_id)]
    assert (await second.engine.sweep()).expired == ()
    assert {*(await first.engine.sweep()).expired} == set(made)


@pytest.mark.promise("P106")
async def test_an_engine_that_starts_recovers_only_its_part(replicas):
    first, second = replicas
    made = [(await first.engine.create(CreateRequest())).id for _ in range(8)]
    for one in replicas:
        await one.renew()
    part = [the_id for the_id in made if second.leases.lease(the_id)]
    found = await second.engine.recover()
    assert (found.kept, found.adopted) == (len(part), 0)
    for the_id in made:
        await second.engine.destroy(the_id)


async def test_every_engine_serves_the_sandboxes_of_a_shared_backend(engines):
    one, other = engines
    made = await one.create(CreateRequest(session_key="k"))
    assert (await other.create(CreateRequest(session_key="k"))).id == made.id
    await one.exec(made.id, ExecRequest("greeting=hello"))
    assert (await other.exec(made.id, ExecRequest("echo $greeting"))).stdout == b"hello\n"
    # A daemon that starts, and a reaper, leave the sandboxes of the others alone.
    await other.recover_soon()
    await other.sweep()
    assert (await one.exec(made.id, ExecRequest("echo $greeting"))).stdout == b"hello\n"
    assert [info.id for info in await other.list()] == [made.id]
    await other.destroy(made.id)
    with pytest.raises(SessionExpired, match="was destroyed"):
        await one.exec(made.id, ExecRequest("echo $greeting"))
    assert list(await one.list()) == []


async def test_a_second_request_for_a_session_that_starts_slowly_is_told_to_try_again(
    replicas, monkeypatch
):
    one, other = replicas
    pulled, asked = asyncio.Event(), asyncio.Event()
    create = one.backend.create

    async def pull_and_create(*given):
        asked.set()
        await pulled.wait()
        return await create(*given)

    monkeypatch.setattr(one.backend, "create", pull_and_create)
    first = asyncio.create_task(one.engine.create(CreateRequest(session_key="k")))
    await asked.wait()
    monkeypatch.setattr(sandboxes, "LOCK_WAIT_S", 0.05)
    (row,) = await other.engine.list()
    async with serving(other.engine) as daemon:
        refused = await daemon.ask("POST", "/v1/sessions", {"session_key": "k"})
        assert (refused.status, refused.json["code"]) == (503, "BUSY")
        assert "session_key" in refused.json["message"]
        assert "send the same request again" in refused.json["hint"]
        assert refused.json["retryable"]
        assert refused.headers["Retry-After"]
        busy = await daemon.ask("DELETE", f"/v1/sessions/{row.id}")
        assert (busy.status, busy.json["code"], busy.json["hint"] != "") == (503, "BUSY", True)
        pulled.set()
        made = await first
        joined = await daemon.ask("POST", "/v1/sessions", {"session_key": "k"})
        assert (joined.json["id"], joined.json["created"]) == (made.id, False)


async def test_a_quota_is_counted_without_reading_the_rows(engines, monkeypatch):
    one, other = engines
    quota = TenantQuota(max_sessions=2, max_memory_bytes=1 << 40, max_disk_bytes=1 << 50)
    made = await one.create(CreateRequest(), quota)

    create, read = asyncio.current_task(), PostgresLedger.list

    async def rows(ledger):
        assert asyncio.current_task() is not create, "all rows were read under the lock"
        return await read(ledger)

    with monkeypatch.context() as patched:
        patched.setattr(PostgresLedger, "list", rows)
        await other.create(CreateRequest(), quota)
    with pytest.raises(QuotaExceeded, match="has 2 of 2 sessions"):
        await other.create(CreateRequest(), quota)
    await one.destroy(made.id)
    await one.create(CreateRequest(), quota)


async def test_an_engine_that_cannot_be_opened_closes_its_database(
    postgres_server, tmp_path, monkeypatch
):
    def fail(**_):
        raise InvalidConfiguration("no")

    monkeypatch.setattr(engine_assembly, "Engine", fail)
    environ = {"SANDKASTEN_STORE_URL": postgres_server.url}
    settings = load({"data_dir": str(tmp_path / "data")}, environ, tmp_path)
    with pytest.raises(InvalidConfiguration):
        await open_engine(settings)
    watching = [task for task in asyncio.all_tasks() if "_watch" in repr(task.get_coro())]
    assert watching == []
