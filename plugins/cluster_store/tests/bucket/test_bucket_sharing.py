"""Several daemons with one bucket, daemons without it, files from before it was set, and large
files.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
from contextlib import AsyncExitStack

import pytest

from plugins.cluster_store.tests.bucket.listed_objects import objects_in
from plugins.cluster_store.tests.bucket.test_bucket_faults import pieces, whole
from sandkasten.errors import BackendUnavailable, Conflict
from sandkasten_cluster_store.bucket.bucket import Bucket, object_sha256
from sandkasten_cluster_store.bucket.bucket_options import OBJECT_BYTES
from sandkasten_cluster_store.postgres.postgres_files import PostgresFileStore
from sandkasten_runtime.engine.clock import SystemClock
from tests.platform_choice import LONG

pytestmark = pytest.mark.promise("P112")
DATA = os.urandom(300_000)
MIB = 1024 * 1024


def _rss() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
async def open_store(open_postgres, open_bucket):
    """Return a function that opens the files of another daemon; with `bucket=False` without one."""

    async def open_another(*, bucket: bool = True, **options) -> PostgresFileStore:
        database = await open_postgres()
        contents = await open_bucket(database, **options) if bucket else None
        return PostgresFileStore(database, SystemClock(), bucket=contents)

    return open_another


async def test_a_file_of_one_daemon_is_read_replaced_and_removed_by_another(open_store):
    one, other = await open_store(), await open_store()
    await one.put("t", "k", pieces(DATA))
    assert await whole(other, "k") == DATA
    async with one.read("t", "k") as (_, data):
        # What another daemon replaces is read to its end.
        await other.put("t", "k", pieces(b"new"), overwrite=True)
        assert b"".join([piece async for piece in data]) == DATA
    assert await whole(one, "k") == b"new"
    await other.delete("t", "k")
    await one.collect(0.0)
    assert await objects_in(one._bucket) == []


async def test_small_files_stay_in_the_database(open_store):
    store = await open_store(min_bytes=1000)
    await store.put("t", "small", pieces(b"x" * 1000))
    assert await objects_in(store._bucket) == []
    await store.put("t", "large", pieces(b"x" * 1001))
    assert len(await objects_in(store._bucket)) == 1
    assert (await whole(store, "small"), await whole(store, "large")) == (b"x" * 1000, b"x" * 1001)
    assert await store.usage("t") == 2001


async def test_files_from_before_the_bucket_are_read_and_removed(open_store):
    before = await open_store(bucket=False)
    await before.put("t", "k", pieces(DATA))
    store = await open_store()
    assert await whole(store, "k", offset=7) == DATA[7:]
    await store.delete("t", "k")
    await store.collect(0.0)
    assert await store._database.fetch("SELECT 1 FROM contents") == []


async def test_a_daemon_without_the_bucket_says_where_a_file_is(open_store):
    store = await open_store()
    await store.put("t", "k", pieces(DATA))
    for other in (await open_store(bucket=False), await open_store(prefix="elsewhere/")):
        with pytest.raises(BackendUnavailable, match=r"the file is in s3://files/t/, and") as told:
            await whole(other, "k")
        assert "store.files" in told.value.hint
        # It can remove the file; its objects are removed by a daemon with the bucket.
        assert (await other.get("t", "k")).size_bytes == len(DATA)
        await other.collect(0.0, 0.0)
    await other.delete("t", "k")
    await other.collect(0.0, 0.0)
    assert len(await objects_in(store._bucket)) == 1
    await store.collect(0.0, 0.0)
    assert await objects_in(store._bucket) == []


async def test_objects_without_a_row_are_removed_once_a_day_by_one_daemon(open_store, s3_server):
    one, other = await open_store(), await open_store()
    await one.put("t", "k", pieces(DATA))
    async with Bucket(s3_server.options()) as bucket:
        sha256 = await object_sha256(b"x")
        orphan = f"{one._bucket._folder}c_unknown/0000000000000"
        foreign = "t/0123456789abcdef/c_unknown/0000000000000"
        for name in (orphan, foreign):
            await bucket.put(name, b"x", sha256)
        # Neither is a day old.
        assert (await one._bucket.sweep(), len(await objects_in(one._bucket))) == (0, 2)
        assert await one._bucket.sweep(-5.0) == 1
        assert await whole(other, "k") == DATA
        # Another database may use the same bucket.
        assert [found.name async for found in bucket.list(foreign)] == [foreign]
        await bucket.delete(foreign)
    assert await other._bucket.sweep() == 0


async def test_an_upload_that_upkeep_gave_up_is_refused(open_store):
    store, other = await open_store(), await open_store()

    async def slow():
        yield b"x" * OBJECT_BYTES
        await other.collect(3600.0, 0.0)

    with pytest.raises(Conflict, match="took too long"):
        await store.put("t", "k", slow())
    await store.collect(0.0, 0.0)
    assert await objects_in(store._bucket) == []


async def test_a_large_file_passes_in_bounded_memory(open_store):
    size = (200 if LONG else 64) * MIB
    store = await open_store()
    sent, got, most = hashlib.sha256(), hashlib.sha256(), 0

    async def random_pieces():
        nonlocal most
        for _ in range(size // MIB):
            piece = os.urandom(MIB)
            sent.update(piece)
            most = max(most, _rss())
            yield piece

    gc.collect()
    before = _rss()
    row = await store.put("t", "k", random_pieces())
    assert (row.size_bytes, row.checksum) == (size, f"sha256:{sent.hexdigest()}")
    async with store.read("t", "k") as (_, data):
        async for piece in data:
            got.update(piece)
            most = max(most, _rss())
    assert got.digest() == sent.digest()
    assert most - before < 32 * MIB
    assert len(await objects_in(store._bucket)) == size // OBJECT_BYTES
    await store.delete("t", "k")
    await store.collect(0.0)
    assert await objects_in(store._bucket) == []


async def test_many_slow_clients_share_a_bounded_memory(open_store):
    """Each has received, or sent, most of an object when all of them stop."""
    store = await open_store()
    data, clients = os.urandom(OBJECT_BYTES), 60
    await store.put("t", "k", pieces(data))
    gc.collect()
    before = _rss()
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(clients):
            _, reader = await stack.enter_async_context(store.read("t", "k"))
            readers.append((reader, [await anext(reader)]))
        assert _rss() - before < 130 * MIB
        for reader, got in readers:
            got += [piece async for piece in reader]
            assert b"".join(got) == data
            got.clear()

    gc.collect()
    before, go_on = _rss(), asyncio.Event()
    sent = asyncio.Semaphore(0)

    async def slow():
        for at in range(0, OBJECT_BYTES, MIB // 4):
            yield data[at : min(at + MIB // 4, OBJECT_BYTES - 1)]
        sent.release()
        await go_on.wait()
        yield data[-1:]

    several = [asyncio.create_task(store.put("t", f"{one}", slow())) for one in range(clients)]
    for _ in several:
        await sent.acquire()
    assert _rss() - before < 130 * MIB
    go_on.set()
    await asyncio.gather(*several)
    assert await whole(store, f"{clients - 1}") == data
