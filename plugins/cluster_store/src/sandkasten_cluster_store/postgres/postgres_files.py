"""Stored files in PostgreSQL, shared by all daemons. Implements `ports.FileStore`.

Content is written in pieces before the row that refers to it is committed, so a row never refers to
incomplete content. Content that was replaced or deleted is kept for `READERS_S`, so that requests
that read it can finish, unless it is more than files of its tenant may have. Content without a row
after `ARRIVAL_S` was left by a crash. `prune` removes both. The pieces are rows of the database and
part of its backups, or objects in a bucket if there is one and the file is not small
(`bucket_contents.py`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sandkasten.errors import BackendUnavailable, Conflict, InternalError, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.files.file_store_rules import (
    UNKNOWN_TYPE,
    checked_content_type,
    checked_metadata,
    file_key,
    known_file_key,
    new_file_key,
    no_such_file,
)
from sandkasten.model.journal_rows import StoredFile
from sandkasten_cluster_store.bucket.bucket_options import OBJECT_BYTES
from sandkasten_runtime.store.record_rules import FileRules
from sandkasten_server.records.file_store import (
    UnfinishedUploads,
    check_digest,
    check_size,
    check_total,
    key_taken,
    no_limit,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from sandkasten.ports import Clock, MaxStoredBytes
    from sandkasten_cluster_store.postgres.bucket_contents import BucketContents
    from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase, Row

    Files: TypeAlias = Sequence[StoredFile]

log = logging.getLogger("sandkasten.store")
_COLUMNS: Final = "key, tenant, size_bytes, content_type, sha256, created_at, expires_at, metadata"
_LIVE: Final = "(expires_at IS NULL OR expires_at > $3)"
_PIECE: Final = 256 * 1024
# A sum over all uploads to this daemon: what has arrived and is not stored yet.
_WAITING_BYTES: Final = 64 * 1024 * 1024
# Longer than reading a file may take, and longer than an upload may take.
READERS_S: Final = 3600.0
ARRIVAL_S: Final = 86_400.0
_PRUNE_AT_ONCE: Final = 500
_NO_LIMIT: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class _ArrivedContent:
    id: str
    size_bytes: int
    digest: str


class PostgresFileStore:
    def __init__(
        self,
        database: PostgresDatabase,
        clock: Clock,
        rules: FileRules | None = None,
        bucket: BucketContents | None = None,
    ) -> None:
        self.rules = rules if rules is not None else FileRules()
        self._bucket = bucket
        self._database = database
        self._clock = clock
        self._uploads = UnfinishedUploads()
        self._waiting_bytes = 0

    async def put(
        self,
        tenant: str,
        key: str | None,
        data: AsyncIterable[bytes],
        *,
        content_type: str = UNKNOWN_TYPE,
        expires_at: float | None = None,
        metadata: Mapping[str, str] | None = None,
        expect_sha256: str | None = None,
        expect_bytes: int | None = None,
        overwrite: bool = False,
        max_stored_bytes: MaxStoredBytes | None = None,
    ) -> StoredFile:
        now = self._clock.now()
        if expires_at is None and self.rules.ttl_s is not None:
            expires_at = now + self.rules.ttl_s
        key = new_file_key() if key is None else file_key(key)
        content_type = checked_content_type(content_type)
        metadata = checked_metadata(metadata or {})
        # Checked before the bytes arrive, and again when the row is inserted.
        if not overwrite and await self._find(tenant, key, now) is not None:
            raise key_taken(key)
        limits = max_stored_bytes if max_stored_bytes is not None else no_limit
        async with limits() as limit:
            pass
        used = await self._used(tenant, without=key)

        def check(others: int, size: int) -> None:
            check_size(used + others, size, self.rules, limit)

        if expect_bytes is not None:
            check(0, expect_bytes)
        await self._bound_removed(tenant)
        content = f"c_{secrets.token_hex(16)}"
        try:
            with self._uploads.checked(tenant, check) as allowed:
                arrived = await self._receive(content, tenant, data, allowed)
            check_digest(arrived.digest, expect_sha256)
            row = StoredFile(
                key=key,
                tenant=tenant,
                size_bytes=arrived.size_bytes,
                content_type=content_type,
                checksum=f"sha256:{arrived.digest}",
                created_at=now,
                expires_at=expires_at,
                metadata=metadata,
            )
            # Again: sandboxes and files may have used the space while this one arrived.
            async with limits() as limit:
                await self._insert(row, arrived, limit, overwrite=overwrite)
        except BaseException:
            await self._drop(content)
            raise
        return row

    async def get(self, tenant: str, key: str) -> StoredFile:
        key = known_file_key(key)
        record = await self._find(tenant, key, self._clock.now())
        if record is None:
            raise no_such_file(key)
        return _row(record)

    @asynccontextmanager
    async def read(
        self, tenant: str, key: str, *, offset: int = 0, limit: int | None = None
    ) -> AsyncIterator[tuple[StoredFile, AsyncIterator[bytes]]]:
        """Read the content as it was when opened, even if the file is replaced or deleted
        meanwhile.
        """
        key = known_file_key(key)
        record = await self._find(tenant, key, self._clock.now())
        if record is None:
            raise no_such_file(key)
        row = _row(record)
        remaining = max(0, row.size_bytes - offset)
        wanted = remaining if limit is None else min(remaining, limit)
        location = record["location"]
        pieces = self._pieces if location is None else self._bucket_at(location).pieces
        yield row, pieces(record["content_id"], offset, wanted)

    async def list(
        self, tenant: str, *, prefix: str = "", limit: int = 1000, after: str | None = None
    ) -> Files:
        """List in key order; `after` is the last key of the previous page."""
        rows = await self._database.fetch(
            f"SELECT {_COLUMNS} FROM files WHERE tenant = $1 AND key > $2 AND {_LIVE}"  # noqa: S608
            " AND key >= $4 AND starts_with(key, $4) ORDER BY key LIMIT $5",
            tenant,
            after or "",
            self._clock.now(),
            prefix,
            limit if limit >= 0 else _NO_LIMIT,
        )
        return [_row(row) for row in rows]

    async def delete(self, tenant: str, key: str) -> None:
        key = known_file_key(key)
        rows = await self._database.write(
            "WITH gone AS (DELETE FROM files WHERE tenant = $1 AND key = $2"
            " RETURNING content_id, expires_at), dropped AS (UPDATE contents SET dropped_at = now()"
            " FROM gone WHERE contents.id = gone.content_id) SELECT expires_at FROM gone",
            tenant,
            key,
        )
        if not rows or (
            rows[0]["expires_at"] is not None and rows[0]["expires_at"] <= self._clock.now()
        ):
            raise no_such_file(key)

    async def usage(self, tenant: str) -> int:
        return await self._used(tenant)

    async def prune(self, now: float) -> int:
        removed = 0
        while several := await self._database.execute(
            "WITH gone AS (DELETE FROM files WHERE (tenant, key) IN"
            " (SELECT tenant, key FROM files WHERE expires_at <= $1 LIMIT $2)"
            " RETURNING content_id) UPDATE contents SET dropped_at = now()"
            " FROM gone WHERE contents.id = gone.content_id",
            now,
            _PRUNE_AT_ONCE,
        ):
            removed += several
        await self.collect()
        return removed

    async def collect(self, readers_s: float = READERS_S, arrival_s: float = ARRIVAL_S) -> int:
        """Remove content without a file, `readers_s` after it was dropped; return how many."""
        removed = await self._database.execute(
            "DELETE FROM contents WHERE id IN (SELECT id FROM contents"
            " WHERE (dropped_at < now() - make_interval(secs => $1)"
            " OR created_at < now() - make_interval(secs => $2)) AND location IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM files WHERE content_id = contents.id) LIMIT $3)",
            readers_s,
            arrival_s,
            _PRUNE_AT_ONCE,
        )
        if self._bucket is not None:
            removed += await self._bucket.collect(readers_s, arrival_s)
            await self._bucket.sweep()
        return removed

    async def _bound_removed(self, tenant: str) -> None:
        """Remove the tenant's content without a file now, if it is more than files of a tenant may
        have. Otherwise one that replaces its files again and again fills the disk within
        `READERS_S`; the price is that readers of a removed file may see an error.
        """
        row = await self._database.fetch_one(_REMOVED, tenant)
        if row is None or int(row["total"]) <= self.rules.max_total_bytes:
            return
        await self._database.execute(
            "DELETE FROM contents WHERE tenant = $1 AND dropped_at IS NOT NULL"
            " AND location IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM files WHERE content_id = contents.id)",
            tenant,
        )
        if self._bucket is not None:
            try:
                await self._bucket.collect_of(tenant)
            except SandkastenError as exc:
                log.warning("files.uncollected", extra={"sandkasten": {"trouble": exc.code}})

    def _bucket_at(self, location: str) -> BucketContents:
        if self._bucket is None or self._bucket.location != location:
            here = "none" if self._bucket is None else self._bucket.location
            raise BackendUnavailable(
                f"the file is in {location}, and the bucket of this daemon is {here}",
                hint="set store.files as for the daemon that stored the file",
                store="s3",
            )
        return self._bucket

    async def _find(self, tenant: str, key: str, now: float) -> Row | None:
        return await self._database.fetch_one(
            f"SELECT {_COLUMNS}, content_id,"  # noqa: S608
            " (SELECT location FROM contents WHERE id = content_id) FROM files"
            f" WHERE tenant = $1 AND key = $2 AND {_LIVE}",
            tenant,
            key,
            now,
        )

    async def _used(self, tenant: str, *, without: str | None = None) -> int:
        """Return the bytes of the tenant's files, without the file of one key."""
        row = await self._database.fetch_one(_USED, tenant, without)
        return 0 if row is None else int(row["total"])

    async def _receive(
        self,
        content: str,
        tenant: str,
        data: AsyncIterable[bytes],
        allowed: Callable[[int], None],
    ) -> _ArrivedContent:
        hashing = hashlib.sha256()
        size = stored = 0
        waiting = bytearray()
        bucket, unit, store = self._bucket, _PIECE, self._store
        await self._database.execute(
            "INSERT INTO contents (id, tenant) VALUES ($1, $2)", content, tenant
        )
        try:
            async for piece in data:
                size += len(piece)
                allowed(size)
                hashing.update(piece)
                waiting += piece
                self._waiting_bytes += len(piece)
                if bucket is not None:
                    if size <= bucket.min_bytes:
                        # It may stay so small, and then it is stored as rows.
                        continue
                    await bucket.begin(content)
                    unit, store = OBJECT_BYTES, bucket.store
                    bucket = None
                # Many slow uploads store smaller objects, or they would fill the memory.
                while len(waiting) >= (unit if self._waiting_bytes <= _WAITING_BYTES else _PIECE):
                    stored += await self._store_first(store, content, stored, waiting, unit)
            while waiting:
                stored += await self._store_first(store, content, stored, waiting, unit)
        finally:
            self._waiting_bytes -= len(waiting)
        return _ArrivedContent(content, size, hashing.hexdigest())

    async def _store_first(
        self,
        store: Callable[[str, int, bytes], Awaitable[None]],
        content: str,
        starts_at: int,
        waiting: bytearray,
        most: int,
    ) -> int:
        """Store the beginning of what waits, and remove it there; return its size."""
        data = bytes(waiting[:most])
        await store(content, starts_at, data)
        del waiting[: len(data)]
        self._waiting_bytes -= len(data)
        return len(data)

    async def _store(self, content: str, starts_at: int, data: bytes) -> None:
        await self._database.execute(
            "INSERT INTO content_pieces (content_id, starts_at, data) VALUES ($1, $2, $3)",
            content,
            starts_at,
            data,
        )

    async def _insert(
        self, row: StoredFile, arrived: _ArrivedContent, limit: int | None, *, overwrite: bool
    ) -> None:
        async with self._database.transaction() as connection:
            # One writer of a tenant at a time: the sum of its files is checked.
            turn = self._database.lock_key(f"files:{row.tenant}")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", turn)
            if not overwrite and await connection.fetchrow(
                f"SELECT 1 FROM files WHERE tenant = $1 AND key = $2 AND {_LIVE}",  # noqa: S608
                row.tenant,
                row.key,
                row.created_at,
            ):
                raise key_taken(row.key)
            await connection.execute(
                "WITH gone AS (DELETE FROM files WHERE tenant = $1 AND key = $2"
                " RETURNING content_id) UPDATE contents SET dropped_at = now() FROM gone"
                " WHERE contents.id = gone.content_id",
                row.tenant,
                row.key,
            )
            # `collect` and `_drop` remove the content of a row only after they marked it.
            if not await connection.fetchrow(_STILL_KEPT, arrived.id):
                raise Conflict("the upload took too long and was given up", hint="send it again")
            used = int(await connection.fetchval(_USED, row.tenant, None))
            check_total(used, row.size_bytes, self.rules, limit)
            await connection.execute(
                "UPDATE contents SET size_bytes = $2 WHERE id = $1", arrived.id, row.size_bytes
            )
            await connection.execute(
                f"INSERT INTO files ({_COLUMNS}, content_id)"  # noqa: S608
                " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                row.key,
                row.tenant,
                row.size_bytes,
                row.content_type,
                arrived.digest,
                row.created_at,
                row.expires_at,
                json.dumps(dict(row.metadata)),
                arrived.id,
            )

    async def _drop(self, content: str) -> None:
        """Remove content of an upload that failed."""
        try:
            await self._database.execute(
                "DELETE FROM contents WHERE id = $1 AND location IS NULL"
                " AND NOT EXISTS (SELECT 1 FROM files WHERE content_id = $1)",
                content,
            )
            if self._bucket is not None:
                await self._bucket.drop(content)
        except SandkastenError as exc:
            # No reader can find it; it is removed a day later.
            log.warning("files.uncollected", extra={"sandkasten": {"trouble": exc.code}})

    async def _pieces(self, content: str, offset: int, remaining: int) -> AsyncIterator[bytes]:
        while remaining > 0:
            starts_at = offset - offset % _PIECE
            row = await self._database.fetch_one(
                "SELECT substring(data FROM $3::int FOR $4::int) AS data FROM content_pieces"
                " WHERE content_id = $1 AND starts_at = $2",
                content,
                starts_at,
                offset - starts_at + 1,
                min(remaining, _PIECE),
            )
            if row is None or not row["data"]:
                raise InternalError("a stored file is shorter than it was", hint="store it again")
            piece = bytes(row["data"])
            offset += len(piece)
            remaining -= len(piece)
            yield piece


_USED = """
SELECT coalesce(sum(size_bytes), 0)::bigint AS total FROM files
WHERE tenant = $1 AND key IS DISTINCT FROM $2
"""
_REMOVED = """
SELECT coalesce(sum(size_bytes), 0)::bigint AS total FROM contents
WHERE tenant = $1 AND dropped_at IS NOT NULL
"""
_STILL_KEPT = "SELECT 1 FROM contents WHERE id = $1 AND dropped_at IS NULL FOR KEY SHARE"


def _row(record: Any) -> StoredFile:
    return StoredFile(
        key=record["key"],
        tenant=record["tenant"],
        size_bytes=record["size_bytes"],
        content_type=record["content_type"],
        checksum=f"sha256:{record['sha256']}",
        created_at=record["created_at"],
        expires_at=record["expires_at"],
        metadata=MappingProxyType(json.loads(record["metadata"])),
    )
