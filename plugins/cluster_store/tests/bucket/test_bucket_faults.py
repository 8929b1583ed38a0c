"""Stored files while their bucket fails: named errors, retries, nothing half and nothing left."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os

import pytest

from plugins.cluster_store.tests.bucket.fault_proxy import Fault, FaultProxy
from plugins.cluster_store.tests.bucket.listed_objects import objects_in
from plugins.cluster_store.tests.s3_server import BUCKET, FULL
from sandkasten.errors import BackendUnavailable, InternalError, QuotaExceeded, SandkastenError
from sandkasten_cluster_store.bucket.bucket import Bucket
from sandkasten_cluster_store.bucket.bucket_options import OBJECT_BYTES
from sandkasten_cluster_store.postgres.postgres_files import PostgresFileStore
from sandkasten_runtime.engine.clock import SystemClock

pytestmark = pytest.mark.promise("P112")
DATA = os.urandom(OBJECT_BYTES + 100_000)


async def pieces(data: bytes = DATA):
    for at in range(0, len(data), 100_000):
        yield data[at : at + 100_000]


async def whole(store, key: str, **how) -> bytes:
    async with store.read("t", key, **how) as (_, data):
        return b"".join([piece async for piece in data])


@pytest.fixture
async def proxy(s3_server):
    async with FaultProxy(s3_server.port) as one:
        yield one


@pytest.fixture
async def bucket(open_postgres, open_bucket, proxy):
    return await open_bucket(await open_postgres(), endpoint=proxy.url)


@pytest.fixture
async def store(bucket):
    return PostgresFileStore(bucket._database, SystemClock(), bucket=bucket)


async def nothing_is_left(store, bucket) -> bool:
    await store.collect(0.0, 0.0)
    rows = await bucket._database.fetch("SELECT id FROM contents")
    return not rows and not await objects_in(bucket) and not await store.list("t")


@pytest.mark.parametrize(
    "fault",
    [
        Fault("PUT", "answer", 2, 503, "SlowDown"),
        Fault("PUT", "answer", 1, 500, "InternalError"),
        Fault("PUT", "reset", 2),
        Fault("PUT", "lose_answer"),
        Fault("PUT", "spoil"),
    ],
    ids=["slow down", "internal error", "reset", "lost answer", "damaged on its way"],
)
async def test_a_write_that_fails_for_a_moment_is_repeated(store, bucket, proxy, fault):
    times = fault.times
    proxy.add(fault)
    await store.put("t", "k", pieces())
    assert proxy.seen == ["PUT"] * (2 + times)
    assert await whole(store, "k") == DATA
    assert len(await objects_in(bucket)) == 2


@pytest.mark.parametrize("kind", ["cut", "reset"])
async def test_half_an_object_is_read_again(store, proxy, kind):
    await store.put("t", "k", pieces())
    proxy.add(Fault("GET", kind, 2))
    assert await whole(store, "k") == DATA


async def test_a_range_reads_only_the_objects_that_have_it(store, proxy):
    await store.put("t", "k", pieces())
    proxy.seen.clear()
    assert await whole(store, "k", offset=10, limit=5) == DATA[10:15]
    assert proxy.seen == ["GET"]
    both = await whole(store, "k", offset=OBJECT_BYTES - 2, limit=4)
    assert (both, proxy.seen) == (DATA[OBJECT_BYTES - 2 :][:4], ["GET"] * 3)
    assert await whole(store, "k", offset=len(DATA) - 3) == DATA[-3:]


@pytest.mark.parametrize(
    ("status", "code", "error", "message", "hint"),
    [
        (403, "AccessDenied", BackendUnavailable, "refuses this daemon", "s3:PutObject"),
        (403, "", BackendUnavailable, "status 403", "s3:PutObject"),
        (403, "RequestTimeTooSkewed", BackendUnavailable, "refuses", "the clock"),
        (404, "NoSuchBucket", BackendUnavailable, "NoSuchBucket", f"create the bucket {BUCKET}"),
        (301, "PermanentRedirect", BackendUnavailable, "refuses", "store.files.region"),
        (507, "XMinioStorageFull", QuotaExceeded, "is full", "free space"),
        (403, "QuotaExceeded", QuotaExceeded, "is full", "free space"),
    ],
)
async def test_what_waiting_does_not_help_is_an_error_at_once(
    store, bucket, proxy, status, code, error, message, hint
):
    proxy.add(Fault("PUT", "answer", 100, status, code))
    with pytest.raises(error, match=message) as caught:
        await store.put("t", "k", pieces())
    assert hint in caught.value.hint
    assert proxy.seen.count("PUT") == 1
    proxy.clear()
    assert await nothing_is_left(store, bucket)


async def test_a_bucket_that_stays_away_is_a_named_error_without_keys(store, bucket, proxy, caplog):
    caplog.set_level(logging.DEBUG)
    proxy.add(Fault("PUT", "answer", 100, 503, "SlowDown"))
    with pytest.raises(BackendUnavailable, match=r"overloaded or failing \(SlowDown\)") as caught:
        await store.put("t", "k", pieces())
    assert proxy.seen.count("PUT") == 5
    proxy.clear()
    told = [str(caught.value), repr(caught.value), repr(caught.value.details), caplog.text]
    told += [repr(bucket), repr(bucket._bucket)]
    assert not [one for one in told for key in FULL.values() if key in one]
    assert await nothing_is_left(store, bucket)


async def test_a_bucket_that_does_not_answer_is_given_up_and_leaves_nothing(
    open_postgres, open_bucket, proxy
):
    """The request arrives at the bucket after its content was dropped."""
    bucket = await open_bucket(await open_postgres(), endpoint=proxy.url, timeout_s=0.5)
    store = PostgresFileStore(bucket._database, SystemClock(), bucket=bucket)
    hanging = proxy.add(Fault("PUT", "hang", 100))
    with pytest.raises(BackendUnavailable, match="does not answer in time"):
        await store.put("t", "k", pieces(b"x" * 1000))
    proxy.clear()
    await hanging.done.wait()
    assert await nothing_is_left(store, bucket)


@pytest.mark.promise("P19")
@pytest.mark.parametrize("damage", ["changed", "shortened", "removed"])
async def test_a_damaged_object_is_not_passed_on(store, bucket, s3_server, damage):
    await store.put("t", "k", pieces())
    second = f"{bucket._folder}{(await objects_in(bucket))[1]}"
    async with Bucket(s3_server.options()) as direct:
        if damage == "removed":
            await direct.delete(second)
        else:
            other = b"y" * (100_000 if damage == "changed" else 50_000)
            await direct.put(second, other, hashlib.sha256(other).hexdigest())
    got = bytearray()

    async def read() -> None:
        async with store.read("t", "k") as (_, data):
            async for piece in data:
                got.extend(piece)

    with pytest.raises(InternalError, match=r"is (missing|not what was stored)") as caught:
        await read()
    assert caught.value.hint == "store it again"
    assert got == DATA[:OBJECT_BYTES]


async def test_a_file_whose_objects_cannot_be_deleted_now_is_removed_later(store, bucket, proxy):
    await store.put("t", "k", pieces())
    await store.delete("t", "k")
    proxy.add(Fault("DELETE", "answer", 100, 403, "AccessDenied"))
    with pytest.raises(SandkastenError, match="AccessDenied"):
        await store.collect(0.0, 0.0)
    assert len(await objects_in(bucket)) == 2
    proxy.clear()
    assert await nothing_is_left(store, bucket)


async def test_an_upload_that_is_cancelled_leaves_nothing(store, bucket, proxy):
    held = proxy.add(Fault("PUT", "hold"))
    upload = asyncio.create_task(store.put("t", "k", pieces()))
    await held.reached.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    # It arrives after its content was dropped.
    held.go.set()
    await held.done.wait()
    assert await nothing_is_left(store, bucket)
