"""A process that stores one file completely, says so, and goes on until it is killed.

Its arguments: the URL of the database, the endpoint of the bucket, and `store` or `remove`.
"""

from __future__ import annotations

import asyncio
import os
import sys

from plugins.cluster_store.tests.s3_server import BUCKET, FULL
from sandkasten_cluster_store.bucket.bucket import Bucket
from sandkasten_cluster_store.bucket.bucket_options import OBJECT_BYTES, BucketOptions
from sandkasten_cluster_store.postgres.bucket_contents import BucketContents
from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase
from sandkasten_cluster_store.postgres.postgres_files import PostgresFileStore
from sandkasten_runtime.engine.clock import SystemClock

CONTENT = b"acknowledged" * 1000


async def pieces(data: bytes):
    yield data


async def main(url: str, endpoint: str, what: str) -> None:
    options = BucketOptions(
        endpoint,
        BUCKET,
        prefix="t/",
        access_key=FULL["access_key"],
        secret_key=FULL["secret_key"],
        min_bytes=0,
    )
    database = await PostgresDatabase.open(url, schema="test", max_connections=4)
    async with Bucket(options) as bucket:
        contents = await BucketContents.open(database, bucket)
        store = PostgresFileStore(database, SystemClock(), bucket=contents)
        await store.put("t", "acknowledged", pieces(CONTENT))
        if what == "remove":
            await store.put("t", "other", pieces(b"x" * (OBJECT_BYTES + 1)))
        os.write(1, b"stored\n")
        await asyncio.to_thread(sys.stdin.readline)
        if what == "remove":
            await store.delete("t", "other")
            await store.collect(0.0)
        else:
            await store.put("t", "other", pieces(b"x" * (OBJECT_BYTES + 1)))
        os.write(1, b"finished\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
