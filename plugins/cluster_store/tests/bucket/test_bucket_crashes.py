"""A process that is killed while it stores or removes a file: nothing lost, nothing left."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plugins.cluster_store.tests.bucket import bucket_writer
from plugins.cluster_store.tests.bucket.fault_proxy import Fault, FaultProxy
from plugins.cluster_store.tests.bucket.listed_objects import objects_in
from plugins.cluster_store.tests.bucket.test_bucket_faults import whole
from sandkasten.errors import FileNotFound
from sandkasten_cluster_store.postgres.postgres_files import PostgresFileStore
from sandkasten_runtime.engine.clock import SystemClock
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.promise("P112"), pytest.mark.promise("P33")]
ROOT = Path(__file__).resolve().parents[4]
_WAITING = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
async def store(open_postgres, open_bucket):
    database = await open_postgres()
    return PostgresFileStore(database, SystemClock(), bucket=await open_bucket(database))


@pytest.fixture
async def proxy(s3_server):
    async with FaultProxy(s3_server.port) as one:
        yield one


@asynccontextmanager
async def writing(url: str, proxy: FaultProxy, what: str) -> AsyncIterator[asyncio.StreamWriter]:
    """Run the writer until it has stored its first file, and kill it after the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", bucket_writer.__name__, url, proxy.url, what),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            assert await process.stdout.readline() == b"stored\n"
            yield process.stdin
    finally:
        process.kill()
        rest = await process.stdout.read()
        await process.wait()
    assert rest == b"", "it was killed too late"


async def acknowledged_alone(store: PostgresFileStore) -> None:
    """Check that another process finds what was acknowledged, and removes all the rest."""
    assert store._bucket is not None
    assert await whole(store, "acknowledged") == bucket_writer.CONTENT
    with pytest.raises(FileNotFound):
        await store.get("t", "other")
    await store.collect(0.0, 0.0)
    assert await whole(store, "acknowledged") == bucket_writer.CONTENT
    assert len(await objects_in(store._bucket)) == 1
    rows = await store._database.fetch("SELECT count(*) AS count FROM contents")
    assert rows[0]["count"] == 1


@pytest.mark.parametrize("kind", ["hold", "hold_answer"])
async def test_killed_around_the_first_object(store, postgres_server, proxy, kind):
    """Before it is in the bucket, from where it arrives later, and before its hash is recorded."""
    async with writing(postgres_server.url, proxy, "store") as go:
        held = proxy.add(Fault("PUT", kind))
        go.write(b"go\n")
        await (held.reached if kind == "hold" else held.done).wait()
    held.go.set()
    await held.done.wait()
    await acknowledged_alone(store)


async def test_killed_between_the_objects_and_the_row_of_the_file(store, postgres_server, proxy):
    database = store._database
    async with (
        database.transaction() as connection,
        writing(postgres_server.url, proxy, "store") as go,
    ):
        turn = database.lock_key("files:t")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", turn)
        go.write(b"go\n")
        while not await database.fetch(_WAITING):
            pass
    await acknowledged_alone(store)


async def test_killed_while_objects_are_deleted(store, postgres_server, proxy):
    async with writing(postgres_server.url, proxy, "remove") as go:
        held = proxy.add(Fault("DELETE", "hold"))
        go.write(b"go\n")
        await held.reached.wait()
    await acknowledged_alone(store)
