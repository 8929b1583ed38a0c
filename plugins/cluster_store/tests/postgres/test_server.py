"""A PostgreSQL server that is away, and an engine that uses one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from plugins.cluster_store.tests.postgres.rows import session, until
from sandkasten.errors import (
    BackendUnavailable,
    InvalidConfiguration,
)
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_cluster_store.cluster_store import ClusterStore
from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase
from sandkasten_cluster_store.postgres.postgres_journal import postgres_journal
from sandkasten_cluster_store.postgres.postgres_ledger import PostgresLedger
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.assembly.shared_store import shared_store
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.daemon.persistent_stores import open_books
from sandkasten_server.records.sql_journal import SqlJournal
from tests.patience import PATIENCE_S
from tests.postgres_server import PostgresServer, new_schema
from tests.store.test_directory import record

if TYPE_CHECKING:
    from sandkasten.model.sandbox.ledger_record import Record

pytestmark = pytest.mark.promise("P98")


PASSWORD = "pass-word-of-the-url"


@pytest.mark.promise("P99")
async def test_an_unavailable_server_is_a_named_error_without_the_password(tmp_path, caplog):
    url = f"postgresql://u:{PASSWORD}@/db?host={tmp_path}"
    with pytest.raises(BackendUnavailable, match="does not answer") as refused:
        await PostgresDatabase.open(url, timeout_s=2.0)
    assert "store.url" in refused.value.hint
    told = f"{refused.value!r} {refused.value} {refused.value.__cause__!r} {caplog.text}"
    assert PASSWORD not in told


@pytest.mark.promise("P99")
@pytest.mark.parametrize("query", ["sslmode=verify-full", "sslmode=x", "target_session_attrs=x"])
async def test_a_url_that_the_driver_refuses_is_not_a_server_that_is_away(
    tmp_path, monkeypatch, query
):
    monkeypatch.setenv("HOME", str(tmp_path))
    url = f"postgresql://u:{PASSWORD}@127.0.0.1:1/db?{query}"
    with pytest.raises(InvalidConfiguration, match="store.url") as refused:
        await PostgresDatabase.open(url, timeout_s=2.0)
    assert PASSWORD not in f"{refused.value!r} {refused.value.__cause__!r}"


@pytest.mark.promise("P99")
async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(durable_server):
    """The server is killed while four writers work, and started again."""
    schema, acknowledged = new_schema(), set()
    database = await PostgresDatabase.open(durable_server.url, schema=schema, timeout_s=5.0)
    ledger = PostgresLedger(database, "node_1")
    journal = postgres_journal(database, "node_1")
    stop, refused = asyncio.Event(), 0

    async def write() -> None:
        nonlocal refused
        while not stop.is_set():
            one = record()
            try:
                await journal.begin_session(replace(session(1), id=one.id))
                await ledger.put(one)
            except BackendUnavailable:
                refused += 1
                await asyncio.sleep(0.01)
            else:
                acknowledged.add(one.id)

    writers = [asyncio.create_task(write()) for _ in range(4)]
    try:
        await until(lambda: len(acknowledged) > 20)
        durable_server.kill()
        await until(lambda: refused > 0)
        await asyncio.to_thread(durable_server.start)
        seen = len(acknowledged)
        await until(lambda: len(acknowledged) > seen + 20)
        stop.set()
        await asyncio.gather(*writers)
        assert acknowledged <= {one.id for one in await ledger.list()}
        assert acknowledged <= {row.id for row in await journal.open_sessions()}
        async with ledger.lock("x", wait_s=PATIENCE_S):
            pass
    finally:
        stop.set()
        await asyncio.gather(*writers, return_exceptions=True)
        await database.aclose()


async def test_an_engine_keeps_its_sandboxes_in_the_database(postgres_server, tmp_path):
    environ = {"SANDKASTEN_STORE_URL": postgres_server.url, "SANDKASTEN_SECRETS_KEY": "k" * 32}
    flags = {"data_dir": str(tmp_path / "data"), "backend": "unisolated"}
    settings = load(flags, environ, tmp_path)
    async with shared_store(settings) as shared, open_books(settings, SystemClock()) as books:
        assert isinstance(shared, ClusterStore)
        engine = await open_engine(settings, journal=books.journal, shared=shared)
        try:
            made = await engine.create(CreateRequest(session_key="k"))
            find = "SELECT node FROM ledger WHERE id = $1"
            assert (await shared.database.fetch(find, made.id))[0]["node"] == shared.node
            await engine.destroy(made.id)
            assert await shared.database.fetch(find, made.id) == []
            ended = await books.journal.session(made.id)
            assert ended is not None
            assert ended.status == "destroyed"
        finally:
            await engine.aclose()
    # The data directory keeps its node, and an engine without the database is refused.
    async with shared_store(settings) as again:
        assert isinstance(again, ClusterStore)
        assert again.node == shared.node
    with pytest.raises(InvalidConfiguration, match="recorded in a database"):
        await open_engine(load(flags, {}, tmp_path))


@pytest.fixture
def durable_server():
    with PostgresServer(durable=True) as server:
        yield server


async def test_a_create_that_lost_the_database_is_removed_without_a_restart(
    postgres_server, tmp_path, monkeypatch
):
    environ = {"SANDKASTEN_STORE_URL": postgres_server.url, "SANDKASTEN_SECRETS_KEY": "k" * 32}
    flags = {"data_dir": str(tmp_path / "data"), "backend": "unisolated"}
    settings = load(flags, environ, tmp_path)
    async with shared_store(settings) as shared, open_books(settings, SystemClock()) as books:
        assert isinstance(shared, ClusterStore)
        engine = await open_engine(settings, journal=books.journal, shared=shared)
        put = PostgresLedger.put

        async def put_new(self: PostgresLedger, row: Record) -> None:
            if row.state is not State.CREATING:
                raise BackendUnavailable("away")
            await put(self, row)

        async def away(*_: object) -> None:
            raise BackendUnavailable("away")

        try:
            with monkeypatch.context() as patched:
                patched.setattr(PostgresLedger, "put", put_new)
                patched.setattr(PostgresLedger, "drop", away)
                patched.setattr(SqlJournal, "end_session", away)
                with pytest.raises(BackendUnavailable):
                    await engine.create(CreateRequest())
            find = "SELECT id FROM ledger WHERE node = $1"
            (left,) = await shared.database.fetch(find, shared.node)
            # The sandbox itself is gone already.
            for backend in engine._backends.values():
                assert left["id"] not in await backend.owned()
            await engine.sweep()
            assert await shared.database.fetch(find, shared.node) == []
            ended = await books.journal.session(left["id"])
            assert ended is not None
            assert ended.status == "destroyed"
        finally:
            await engine.aclose()
