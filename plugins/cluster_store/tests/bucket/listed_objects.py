"""What is in a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandkasten_cluster_store.postgres.bucket_contents import BucketContents


async def objects_in(bucket: BucketContents) -> list[str]:
    """Return the names of all objects of a database, without its folder."""
    folder = bucket._folder
    return sorted([one.name.removeprefix(folder) async for one in bucket._bucket.list(folder)])


async def contents_in(bucket: BucketContents) -> set[str]:
    return {name.partition("/")[0] for name in await objects_in(bucket)}
