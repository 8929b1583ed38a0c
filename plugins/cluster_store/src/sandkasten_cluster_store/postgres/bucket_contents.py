"""Content of stored files as objects in a bucket, and the rows that refer to them.

A content is several objects of `OBJECT_BYTES`, each with its hash in the database, so that it is
streamed with one object in memory, and every object is checked before its bytes are passed on. The
row of a content exists before its first object, and until its last object was deleted: whatever
ends the process, `collect` finds what is left. `sweep` deletes objects without a row, which only a
request that was given up and arrived later, or a restored database, can leave. Uploads of S3 that
consist of parts are not used, so none can stay unfinished.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten_cluster_store.bucket.bucket import object_sha256
from sandkasten_cluster_store.bucket.bucket_errors import damaged_object

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sandkasten_cluster_store.bucket.bucket import Bucket
    from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase

_SWEEP_EVERY_S: Final = 86_400.0
_AT_ONCE: Final = 100
_DELETES_AT_ONCE: Final = 8
_CHUNK: Final = 256 * 1024
# A sum over all readers of this daemon.
_HELD_BYTES: Final = 64 * 1024 * 1024
_NOT_NAMED: Final = "NOT EXISTS (SELECT 1 FROM files WHERE content_id = contents.id)"


class BucketContents:
    """Create with `open`."""

    def __init__(self, database: PostgresDatabase, bucket: Bucket, folder: str) -> None:
        self.location = bucket.options.location
        self.min_bytes = bucket.options.min_bytes
        self._database = database
        self._bucket = bucket
        self._held = _HeldObjects(_HELD_BYTES)
        self._folder = f"{bucket.options.prefix}{folder}/"

    @classmethod
    async def open(cls, database: PostgresDatabase, bucket: Bucket) -> BucketContents:
        """Find the folder of this database in the bucket. The bucket itself may be unreachable."""
        location = bucket.options.location
        await database.execute(
            "INSERT INTO buckets (location, folder) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            location,
            secrets.token_hex(8),
        )
        row = await database.fetch_one("SELECT folder FROM buckets WHERE location = $1", location)
        assert row is not None
        return cls(database, bucket, row["folder"])

    async def begin(self, content: str) -> None:
        """Record that a content is in the bucket, before its first object."""
        await self._database.execute(
            "UPDATE contents SET location = $2 WHERE id = $1", content, self.location
        )

    async def store(self, content: str, starts_at: int, data: bytes) -> None:
        digest = await object_sha256(data)
        await self._bucket.put(self._name(content, starts_at), data, digest)
        await self._database.execute(
            "INSERT INTO content_objects (content_id, starts_at, size_bytes, sha256)"
            " VALUES ($1, $2, $3, $4)",
            content,
            starts_at,
            len(data),
            digest,
        )

    async def pieces(self, content: str, offset: int, remaining: int) -> AsyncIterator[bytes]:
        """Yield a part of a content. Every object is complete and checked before it is used."""
        reader = object()
        try:
            while remaining > 0:
                cached = self._held.get(reader, offset)
                if cached is None:
                    cached = await self._object(content, offset)
                    self._held.keep(reader, cached)
                at = offset - cached.starts_at
                piece = cached.data[at : at + min(remaining, _CHUNK)]
                # Not a second name of it while the piece is sent.
                del cached
                offset += len(piece)
                remaining -= len(piece)
                yield piece
        finally:
            self._held.forget(reader)

    async def _object(self, content: str, offset: int) -> _HeldObject:
        row = await self._database.fetch_one(
            "SELECT starts_at, size_bytes, sha256 FROM content_objects"
            " WHERE content_id = $1 AND starts_at <= $2 ORDER BY starts_at DESC LIMIT 1",
            content,
            offset,
        )
        if row is None or offset >= row["starts_at"] + row["size_bytes"]:
            raise damaged_object("is missing")
        name = self._name(content, row["starts_at"])
        data = await self._bucket.get(name, row["size_bytes"], row["sha256"])
        return _HeldObject(row["starts_at"], data)

    async def drop(self, content: str) -> None:
        """Delete the objects of an upload that failed. Its row stays for `collect`, because a
        request that was given up may still arrive at the bucket.
        """
        async with self._database.transaction() as connection:
            # Waits for an insert of its file whose answer was lost.
            await connection.execute("SELECT 1 FROM contents WHERE id = $1 FOR UPDATE", content)
            dropped = await connection.fetch(
                "UPDATE contents SET dropped_at = now()"  # noqa: S608
                f" WHERE id = $1 AND location = $2 AND {_NOT_NAMED} RETURNING 1",
                content,
                self.location,
            )
        if dropped:
            await self._delete_objects(content)

    async def collect(self, readers_s: float, arrival_s: float) -> int:
        """Remove content that was dropped `readers_s` ago; return how many. Content that has no
        file `arrival_s` after it was begun counts as dropped from now on.
        """
        await self._database.execute(
            "UPDATE contents SET dropped_at = now() WHERE location = $1 AND dropped_at IS NULL"  # noqa: S608
            f" AND created_at < now() - make_interval(secs => $2) AND {_NOT_NAMED}",
            self.location,
            arrival_s,
        )
        removed = 0
        while rows := await self._database.fetch(
            "SELECT id FROM contents WHERE location = $1"  # noqa: S608
            f" AND dropped_at < now() - make_interval(secs => $2) AND {_NOT_NAMED} LIMIT $3",
            self.location,
            readers_s,
            _AT_ONCE,
        ):
            for row in rows:
                await self._remove(row["id"])
            removed += len(rows)
        return removed

    async def collect_of(self, tenant: str) -> None:
        """Remove the content that a tenant has dropped, without waiting for its readers."""
        rows = await self._database.fetch(
            "SELECT id FROM contents WHERE tenant = $1 AND location = $2"  # noqa: S608
            f" AND dropped_at IS NOT NULL AND {_NOT_NAMED} ORDER BY dropped_at LIMIT $3",
            tenant,
            self.location,
            _AT_ONCE,
        )
        for row in rows:
            await self._remove(row["id"])

    async def _remove(self, content: str) -> None:
        await self._delete_objects(content)
        await self._database.execute(
            f"DELETE FROM contents WHERE id = $1 AND {_NOT_NAMED}",  # noqa: S608
            content,
        )

    async def sweep(self, every_s: float = _SWEEP_EVERY_S) -> int:
        """Delete objects without a row that are older than `every_s`; return how many. One daemon
        does so, once in that time.
        """
        due = await self._database.write(
            "UPDATE buckets SET swept_at = now() WHERE location = $1"
            " AND swept_at <= now() - make_interval(secs => $2) RETURNING 1",
            self.location,
            every_s,
        )
        if not due:
            return 0
        removed = 0
        old = time.time() - every_s
        names: list[str] = []
        async for listed in self._bucket.list(self._folder):
            if listed.modified_at <= old:
                names.append(listed.name)
            if len(names) == 1000:
                removed += await self._delete_unknown(names)
                names = []
        return removed + await self._delete_unknown(names)

    async def _delete_unknown(self, names: Sequence[str]) -> int:
        by_content: dict[str, list[str]] = {}
        for name in names:
            content = name.removeprefix(self._folder).partition("/")[0]
            by_content.setdefault(content, []).append(name)
        # Asked after the list: a row is older than its objects.
        rows = await self._database.fetch(
            "SELECT id FROM contents WHERE id = ANY($1)", [*by_content]
        )
        for row in rows:
            del by_content[row["id"]]
        unknown = [name for several in by_content.values() for name in several]
        await self._delete(unknown)
        return len(unknown)

    async def _delete_objects(self, content: str) -> None:
        # Listed and not computed: an object may exist whose row was never inserted.
        await self._delete([listed.name async for listed in self._bucket.list(self._name(content))])

    async def _delete(self, names: Sequence[str]) -> None:
        for at in range(0, len(names), _DELETES_AT_ONCE):
            several = (self._bucket.delete(name) for name in names[at : at + _DELETES_AT_ONCE])
            for failure in await asyncio.gather(*several, return_exceptions=True):
                if failure is not None:
                    raise failure

    def _name(self, content: str, starts_at: int | None = None) -> str:
        """Return the name of an object, or the beginning of all names of a content."""
        number = "" if starts_at is None else f"{starts_at:013d}"
        return f"{self._folder}{content}/{number}"


@dataclass(frozen=True, slots=True)
class _HeldObject:
    starts_at: int
    data: bytes

    def covers(self, offset: int) -> bool:
        return self.starts_at <= offset < self.starts_at + len(self.data)


class _HeldObjects:
    """Objects that readers have in memory between two pieces, of bounded size in all.

    A reader may take an object slowly, and many may do so at once. If they hold too much, those
    that wait longest lose theirs, and read it again for the next piece.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._by_reader: OrderedDict[object, _HeldObject] = OrderedDict()
        self.size_bytes = 0

    def get(self, reader: object, offset: int) -> _HeldObject | None:
        """Return the object of a reader, if it still has one with this byte."""
        cached = self._by_reader.get(reader)
        if cached is None or not cached.covers(offset):
            return None
        self._by_reader.move_to_end(reader)
        return cached

    def keep(self, reader: object, cached: _HeldObject) -> None:
        self.forget(reader)
        self._by_reader[reader] = cached
        self.size_bytes += len(cached.data)
        while self.size_bytes > self._max_bytes and len(self._by_reader) > 1:
            _, oldest = self._by_reader.popitem(last=False)
            self.size_bytes -= len(oldest.data)

    def forget(self, reader: object) -> None:
        cached = self._by_reader.pop(reader, None)
        if cached is not None:
            self.size_bytes -= len(cached.data)
