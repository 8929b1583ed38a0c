"""A PostgreSQL server and an S3 server for this folder, each started by the first test that needs
it, and two engines on one of its databases.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from sandkasten_cluster_store.bucket.bucket import Bucket
from sandkasten_cluster_store.cluster_store import ClusterStore
from sandkasten_cluster_store.postgres import postgres_database
from sandkasten_cluster_store.postgres.bucket_contents import BucketContents
from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase
from sandkasten_runtime.assembly import backend_registry
from sandkasten_runtime.assembly.backend_registry import Backing
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.assembly.shared_store import shared_store
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_server.daemon.persistent_stores import open_books
from tests.patience import PATIENCE_S
from tests.postgres_server import PostgresServer, new_schema
from tests.store.memory_store import MemoryStore
from tests.unisolated.backend import UnisolatedBackend

if TYPE_CHECKING:
    from sandkasten_cluster_store.postgres.shard_leases import ShardLeases
from plugins.cluster_store.tests.s3_server import S3Server

# Emptying the tables is much faster than a new schema for each test.
_EMPTY = "; ".join(
    f"DELETE FROM {table}"
    for table in (
        *("ledger", "state", "sessions", "execs", "traffic", "keys"),
        *("runs", "files", "contents", "secrets", "nodes", "audit", "buckets"),
        "workspaces",
    )
)
_EMPTY += "; UPDATE shards SET node = '', fence = 0, until = '-infinity'"
_EMPTY += "; UPDATE audit_head SET seq = 0, hash = repeat('0', 64), size_bytes = 0"


@pytest.fixture(scope="session")
def postgres_server():
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def open_postgres(request):
    """Return a function that opens an empty database, as another process would. A test that does
    not call it needs no server.
    """
    opened: list[PostgresDatabase] = []

    async def open_another() -> PostgresDatabase:
        server = request.getfixturevalue("postgres_server")
        one = await PostgresDatabase.open(server.url, schema="test", max_connections=4)
        if not opened:
            await one.execute(_EMPTY)
        opened.append(one)
        return one

    yield open_another
    for one in opened:
        await one.aclose()


@pytest.fixture
async def open_new_schema(postgres_server):
    """Return a function that opens a schema of this test alone."""
    schema, opened = new_schema(), []

    async def open_another() -> PostgresDatabase:
        opened.append(await PostgresDatabase.open(postgres_server.url, schema=schema))
        return opened[-1]

    yield open_another
    for one in opened:
        await one.aclose()


@dataclass(frozen=True)
class Replica:
    engine: Engine
    shared: ClusterStore
    backend: UnisolatedBackend

    @property
    def leases(self) -> ShardLeases:
        assert self.shared.leases is not None
        return self.shared.leases

    async def renew(self) -> None:
        async with self.shared.database.transaction() as connection:
            await self.leases.renew(connection, PATIENCE_S)


@pytest.fixture
async def replicas(postgres_server, tmp_path, monkeypatch):
    """Return two engines as two daemons have them, with a data directory each. Leases are renewed
    and sandboxes are swept only by the test.
    """
    backend = UnisolatedBackend(tmp_path / "cluster")
    backing = Backing({backend.name: backend}, MemoryStore(), backend.workspaces)
    monkeypatch.setattr(backend_registry, "open_backing", lambda *_: backing)
    monkeypatch.setattr(backend_registry, "shared_backends", lambda _: frozenset({backend.name}))
    monkeypatch.setattr(postgres_database, "_PULSE_S", 10 * PATIENCE_S)
    monkeypatch.setattr(Engine, "sweep_soon", lambda _: None)
    environ = {"SANDKASTEN_STORE_URL": postgres_server.url, "SANDKASTEN_POOL_ONESHOT_SPARES": "0"}
    opened = []
    async with AsyncExitStack() as stack:
        for name in ("one", "other"):
            flags = {"data_dir": str(tmp_path / name), "backend": backend.name}
            settings = load(flags, environ, tmp_path)
            shared = await stack.enter_async_context(shared_store(settings))
            assert isinstance(shared, ClusterStore)
            books = await stack.enter_async_context(
                open_books(settings, SystemClock(), shared=shared)
            )
            engine = await open_engine(settings, journal=books.journal, shared=shared)
            stack.push_async_callback(engine.aclose)
            opened.append(Replica(engine, shared, backend))
        # What tests before this one left in the database has ended with its backend. Their nodes
        # count as alive for a while, and would get a share of the leases.
        database = opened[0].shared.database
        await database.execute("DELETE FROM ledger")
        nodes = [replica.shared.node for replica in opened]
        await database.execute("DELETE FROM nodes WHERE id <> ALL($1)", nodes)
        await database.execute("UPDATE shards SET until = '-infinity'")
        yield opened
    for the_id in await backend.owned():
        await backend.discard(the_id)


@pytest.fixture(scope="session")
def s3_server():
    with S3Server() as server:
        yield server


@pytest.fixture
async def open_bucket(request):
    """Return a function that opens the contents of a database in a bucket; every file that is not
    empty goes there.
    """
    opened: list[Bucket] = []

    async def open_another(database: PostgresDatabase, **options) -> BucketContents:
        server = request.getfixturevalue("s3_server")
        opened.append(Bucket(server.options(**{"min_bytes": 0, **options})))
        return await BucketContents.open(database, opened[-1])

    yield open_another
    for one in opened:
        await one.__aexit__()
