"""Stored files: content on disk by its sha256, names and owners in the database. Implements
`ports.FileStore`.

Content is synced and in place before the row that refers to it is committed, so a row never refers
to missing content. Content without a row was left by a crash and is removed at the next open.
Several keys of several tenants may share content. Keys are never used as paths. Raises
PayloadTooLarge (one file) or QuotaExceeded (all files of a tenant, or the disk), and then stores
nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sandkasten.disk.os_errors import translated
from sandkasten.errors import (
    Conflict,
    InvalidRequest,
    PayloadTooLarge,
    QuotaExceeded,
    SandkastenError,
)
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
from sandkasten.model.spelling import shown
from sandkasten_runtime.store.record_rules import FileRules
from sandkasten_server.records.content_files import Arrived, Content, pieces

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sandkasten.ports import Clock, MaxStoredBytes
    from sandkasten_server.records.sqlite.database import Database

    Files: TypeAlias = Sequence[StoredFile]

log = logging.getLogger("sandkasten.store")
_COLUMNS: Final = "key, tenant, size_bytes, content_type, sha256, created_at, expires_at, metadata"
_PRUNE_AT_ONCE: Final = 500


class UnfinishedUploads:
    """The bytes of uploads that are arriving at this daemon, by tenant: several at once count
    together.
    """

    def __init__(self) -> None:
        self._by_tenant: dict[str, dict[object, int]] = {}

    @contextmanager
    def checked(
        self, tenant: str, check: Callable[[int, int], None]
    ) -> Iterator[Callable[[int], None]]:
        """Yield a function for the size of one upload so far. It calls `check` with the bytes of
        the tenant's other uploads and with this size.
        """
        upload = object()
        sizes = self._by_tenant.setdefault(tenant, {})
        sizes[upload] = 0

        def grown(size: int) -> None:
            check(sum(sizes.values()) - sizes[upload], size)
            sizes[upload] = size

        try:
            yield grown
        finally:
            del sizes[upload]
            if not sizes:
                del self._by_tenant[tenant]


class DiskFileStore:
    """Stored files. Create with `open`."""

    def __init__(self, root: Path, database: Database, clock: Clock, rules: FileRules) -> None:
        self.rules = rules
        self._content = Content(root)
        self._database = database
        self._clock = clock
        self._uploads = UnfinishedUploads()

    @classmethod
    async def open(
        cls, root: Path, database: Database, clock: Clock, rules: FileRules | None = None
    ) -> DiskFileStore:
        """Open the store and remove what a crash left. The caller holds the lock of the data
        directory.
        """
        store = cls(root, database, clock, rules if rules is not None else FileRules())
        lost = await database.read(store._recover)
        if lost:
            # The content was removed from outside; a row without it would only fail later.
            log.error("files.lost", extra={"sandkasten": {"count": len(lost), "first": lost[0]}})
            await database.write(lambda connection: _forget(connection, lost), lasting=True)
        return store

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
        if not overwrite:
            # Before the bytes arrive, and again afterwards.
            await self._database.read(
                lambda connection: _must_be_free(connection, tenant, key, now)
            )
        limits = max_stored_bytes if max_stored_bytes is not None else no_limit
        async with limits() as limit:
            pass
        arrived = await self._receive(tenant, key, data, limit, expect_bytes)
        try:
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
                replaced = await self._database.write(
                    lambda connection: self._insert(
                        connection, row, arrived, limit, overwrite=overwrite
                    ),
                    lasting=True,
                )
        except BaseException:
            self._content.drop(arrived)
            await self._collect([arrived.digest])
            raise
        if replaced is not None and replaced != arrived.digest:
            await self._collect([replaced])
        return row

    async def get(self, tenant: str, key: str) -> StoredFile:
        key = known_file_key(key)
        now = self._clock.now()

        def select(connection: sqlite3.Connection) -> StoredFile | None:
            row = connection.execute(
                f"SELECT {_COLUMNS} FROM files WHERE tenant = ? AND key = ?"  # noqa: S608
                " AND (expires_at IS NULL OR expires_at > ?)",
                (tenant, key, now),
            ).fetchone()
            return None if row is None else _row(row)

        row = await self._database.read(select)
        if row is None:
            raise no_such_file(key)
        return row

    @asynccontextmanager
    async def read(
        self, tenant: str, key: str, *, offset: int = 0, limit: int | None = None
    ) -> AsyncIterator[tuple[StoredFile, AsyncIterator[bytes]]]:
        """Read the content as it was when opened, even if the file is replaced or deleted
        meanwhile.
        """
        row = await self.get(tenant, key)
        digest = row.checksum.removeprefix("sha256:")
        with translated("read the file"):
            try:
                fd = await asyncio.to_thread(self._content.open, digest)
            except FileNotFoundError as exc:
                raise no_such_file(key) from exc
        try:
            remaining = max(0, row.size_bytes - offset)
            yield row, pieces(fd, offset, remaining if limit is None else min(remaining, limit))
        finally:
            os.close(fd)

    async def list(
        self, tenant: str, *, prefix: str = "", limit: int = 1000, after: str | None = None
    ) -> Files:
        """List in key order; `after` is the last key of the previous page."""
        now = self._clock.now()

        def several(connection: sqlite3.Connection) -> Files:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM files WHERE tenant = ? AND key > ?"  # noqa: S608
                " AND key >= ? AND substr(key, 1, ?) = ?"
                " AND (expires_at IS NULL OR expires_at > ?) ORDER BY key LIMIT ?",
                (tenant, after or "", prefix, len(prefix), prefix, now, limit),
            )
            return [_row(row) for row in rows]

        return await self._database.read(several)

    async def delete(self, tenant: str, key: str) -> None:
        key = known_file_key(key)
        now = self._clock.now()

        def remove(connection: sqlite3.Connection) -> tuple[str, float | None] | None:
            row = connection.execute(
                "DELETE FROM files WHERE tenant = ? AND key = ? RETURNING sha256, expires_at",
                (tenant, key),
            ).fetchall()
            return row[0] if row else None

        removed = await self._database.write(remove, lasting=True)
        if removed is not None:
            await self._collect([removed[0]])
        if removed is None or (removed[1] is not None and removed[1] <= now):
            raise no_such_file(key)

    async def usage(self, tenant: str) -> int:
        return await self._database.read(lambda connection: _used(connection, tenant))

    async def prune(self, now: float) -> int:
        def some(connection: sqlite3.Connection) -> Sequence[str]:
            rows = connection.execute(
                "DELETE FROM files WHERE (tenant, key) IN"
                " (SELECT tenant, key FROM files WHERE expires_at <= ? LIMIT ?) RETURNING sha256",
                (now, _PRUNE_AT_ONCE),
            ).fetchall()
            return [row[0] for row in rows]

        count = 0
        while digests := await self._database.write(some):
            count += len(digests)
            await self._collect(digests)
        return count

    async def _receive(
        self,
        tenant: str,
        key: str,
        data: AsyncIterable[bytes],
        limit: int | None,
        expected: int | None,
    ) -> Arrived:
        used = await self._database.read(lambda connection: _used(connection, tenant, without=key))

        def check(others: int, size: int) -> None:
            check_size(used + others, size, self.rules, limit)

        if expected is not None:
            check(0, expected)
        with self._uploads.checked(tenant, check) as allowed:
            return await self._content.receive(data, allowed)

    def _insert(
        self,
        connection: sqlite3.Connection,
        row: StoredFile,
        arrived: Arrived,
        limit: int | None,
        *,
        overwrite: bool,
    ) -> str | None:
        """Insert the row and return the digest of the content it replaced.

        Content is moved into place here, on the one thread that also removes it, so that it cannot
        be removed before its row exists.
        """
        if not overwrite:
            _must_be_free(connection, row.tenant, row.key, row.created_at)
        replaced = connection.execute(
            "DELETE FROM files WHERE tenant = ? AND key = ? RETURNING sha256", (row.tenant, row.key)
        ).fetchall()
        check_total(_used(connection, row.tenant), row.size_bytes, self.rules, limit)
        connection.execute(
            f"INSERT INTO files ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (
                row.key,
                row.tenant,
                row.size_bytes,
                row.content_type,
                arrived.digest,
                row.created_at,
                row.expires_at,
                json.dumps(dict(row.metadata)),
            ),
        )
        self._content.place(arrived)
        return replaced[0][0] if replaced else None

    async def _collect(self, digests: Sequence[str]) -> None:
        """Remove content that no row names any more."""

        def unlink(connection: sqlite3.Connection) -> None:
            for digest in digests:
                named = connection.execute("SELECT 1 FROM files WHERE sha256 = ?", (digest,))
                if named.fetchone() is None:
                    self._content.remove(digest)

        try:
            await self._database.read(unlink)
        except SandkastenError as exc:
            # The file is gone for all readers; its bytes are removed at the next open.
            log.warning("files.uncollected", extra={"sandkasten": {"trouble": str(exc)}})

    def _recover(self, connection: sqlite3.Connection) -> Sequence[str]:
        """Return the digests that rows refer to and that are missing."""
        present = self._content.prepare()
        named = {row[0] for row in connection.execute("SELECT DISTINCT sha256 FROM files")}
        for digest in present - named:
            self._content.remove(digest)
        return sorted(named - present)


def _forget(connection: sqlite3.Connection, digests: Sequence[str]) -> None:
    connection.executemany("DELETE FROM files WHERE sha256 = ?", [(digest,) for digest in digests])


def _used(connection: sqlite3.Connection, tenant: str, *, without: str | None = None) -> int:
    """Return the bytes of the tenant's files, without the file of one key."""
    sql = "SELECT coalesce(sum(size_bytes), 0) FROM files WHERE tenant = ? AND key IS NOT ?"
    return int(connection.execute(sql, (tenant, without)).fetchone()[0])


@asynccontextmanager
async def no_limit() -> AsyncIterator[int | None]:
    yield None


def check_size(used: int, size: int, rules: FileRules, limit: int | None) -> None:
    """Raise if a file of this size may not be added to the `used` bytes of its tenant."""
    if size > rules.max_bytes:
        raise PayloadTooLarge(
            f"the file is larger than {rules.max_bytes} bytes",
            hint="see the operator's files.max_bytes",
            limit=rules.max_bytes,
        )
    check_total(used, size, rules, limit)


def check_total(used: int, more: int, rules: FileRules, limit: int | None) -> None:
    if used + more > rules.max_total_bytes:
        raise _full(rules)
    if limit is not None and used + more > limit:
        remaining = max(0, limit - used)
        raise QuotaExceeded(
            f"the file is too large: the disk quota of the tenant has {remaining} bytes left",
            hint="delete something, or ask the operator for a larger quota",
            quota="disk",
            left=remaining,
        )


def _must_be_free(connection: sqlite3.Connection, tenant: str, key: str, now: float) -> None:
    row = connection.execute(
        "SELECT 1 FROM files WHERE tenant = ? AND key = ?"
        " AND (expires_at IS NULL OR expires_at > ?)",
        (tenant, key, now),
    ).fetchone()
    if row is not None:
        raise key_taken(key)


def key_taken(key: str) -> Conflict:
    return Conflict(
        f"stored file {shown(key)} already exists",
        hint="pass overwrite, or choose another key",
    )


def check_digest(digest: str, expected: str | None) -> None:
    if expected is not None and digest != expected.lower().removeprefix("sha256:"):
        raise InvalidRequest(
            "the content does not match the announced sha256",
            hint="send it again",
            field="checksum",
            checksum=f"sha256:{digest}",
        )


def _row(row: tuple[Any, ...]) -> StoredFile:
    key, tenant, size, content_type, digest, created, expires, metadata = row
    return StoredFile(
        key=key,
        tenant=tenant,
        size_bytes=size,
        content_type=content_type,
        checksum=f"sha256:{digest}",
        created_at=created,
        expires_at=expires,
        metadata=MappingProxyType(json.loads(metadata)),
    )


def _full(rules: FileRules) -> QuotaExceeded:
    return QuotaExceeded(
        f"the stored files of this tenant would take more than {rules.max_total_bytes} bytes",
        hint="delete some; the operator's files.max_total_bytes is the limit",
        quota="files",
    )
