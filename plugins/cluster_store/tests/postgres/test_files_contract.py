"""Stored files in PostgreSQL, and in a bucket beside it, keep the contract of the file store."""

from __future__ import annotations

import pytest

from plugins.cluster_store.tests.bucket.listed_objects import contents_in
from sandkasten_cluster_store.postgres.postgres_files import PostgresFileStore
from tests.contract_cases import cases
from tests.store import test_file_store
from tests.store.test_file_store import Clock

pytestmark = pytest.mark.promise("P98")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["database", pytest.param("bucket", marks=pytest.mark.promise("P112"))])
async def store(request, clock, open_postgres, open_bucket):
    shared = await open_postgres()
    bucket = await open_bucket(shared) if request.param == "bucket" else None
    return PostgresFileStore(shared, clock, bucket=bucket)


@pytest.fixture
def kept(store):
    """Return a function that returns the digests of all content in the store, each once."""

    async def digests() -> list[str]:
        await store.collect(readers_s=0.0)
        if store._bucket is not None:
            ids = [row["id"] for row in await store._database.fetch("SELECT id FROM contents")]
            assert await contents_in(store._bucket) == set(ids)
        sql = (
            "SELECT DISTINCT coalesce(sha256, 'without a file') AS digest"
            " FROM contents LEFT JOIN files ON content_id = contents.id ORDER BY digest"
        )
        return [row["digest"] for row in await store._database.fetch(sql)]

    return digests


@pytest.fixture
def most_contents(store):
    """Return a function that counts the contents, with those that are removed later."""

    async def count() -> int:
        rows = len(await store._database.fetch("SELECT 1 FROM contents"))
        return rows if store._bucket is None else max(rows, len(await contents_in(store._bucket)))

    return count


globals().update(cases(test_file_store, "store"))
