"""The persistent stores of a data directory: one database with journal, keys and stored files,
and the audit log. With `store.url`, that database is PostgreSQL, and a bucket may have the content
of stored files.

They are opened and closed together. The caller holds the lock of the data directory.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from sandkasten.daemon.engine_assembly import open_audit
from sandkasten.daemon.shared_store import shared_store
from sandkasten.errors import SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.store.file_store import DiskFileStore
from sandkasten.store.recording_directory import RecordingDirectory
from sandkasten.store.sqlite.database import Database
from sandkasten.store.sqlite.sqlite_journal import SqliteJournal
from sandkasten.store.sqlite.sqlite_keys import SqliteKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.daemon.shared_store import SharedStore
    from sandkasten.ports import Clock, FileStore, Journal, Keys
    from sandkasten.store.audit_directory import AuditDirectory
    from sandkasten.store.postgres.bucket_contents import BucketContents
    from sandkasten.store.postgres.postgres_audit import PostgresAudit
    from sandkasten.store.postgres.postgres_database import PostgresDatabase
    from sandkasten.store.postgres.postgres_keys import PostgresKeys


log = logging.getLogger("sandkasten.store")


@dataclass(frozen=True, slots=True)
class Books:
    journal: Journal
    keys: Keys
    files: FileStore
    recordings: RecordingDirectory
    audit: AuditDirectory | PostgresAudit | None = None

    async def prune(self, now: float) -> int:
        """Delete rows past their retention; return how many."""
        if self.audit is not None:
            await self.audit.prune(now)
        await self.recordings.prune(now)
        return await self.journal.prune(now) + await self.files.prune(now)

    async def sync_audit(self) -> None:
        """Sync the audit log, and keep its newest hash in the journal."""
        if self.audit is None:
            return
        head = await self.audit.sync()
        known = await self.journal.audit_head()
        if head.seq > (0 if known is None else known.seq):
            await self.journal.keep_audit_head(head)

    @asynccontextmanager
    async def audit_synced_regularly(self, every_s: float) -> AsyncIterator[None]:
        """Sync the audit log every `every_s` seconds while the block lasts."""

        async def sync() -> None:
            while True:
                await asyncio.sleep(every_s)
                await self.sync_audit_quietly()

        task = asyncio.create_task(sync())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def sync_audit_quietly(self) -> None:
        """Sync it; a failure is logged."""
        try:
            await self.sync_audit()
        except (SandkastenError, OSError) as exc:
            log.warning("audit.unsynced", extra={"sandkasten": {"why": repr(exc)}})

    @asynccontextmanager
    async def pruned_regularly(self, clock: Clock, every_s: float) -> AsyncIterator[None]:
        """Prune every `every_s` seconds while the block lasts."""

        async def prune() -> None:
            while True:
                try:
                    await self.prune(clock.now())
                except SandkastenError as exc:
                    log.warning("books.unpruned", extra={"sandkasten": {"why": exc.code}})
                await asyncio.sleep(every_s)

        task = asyncio.create_task(prune())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def open_books(
    settings: Settings,
    clock: Clock,
    db_path: Path | None = None,
    *,
    shared: SharedStore | None = None,
) -> AsyncIterator[Books]:
    """Open the stores, and close them after the block.

    `db_path`: the SQLite database, if it is outside the data directory. `shared`: the database of
    `store.url`, if it is open already.
    """
    if settings.store.url is not None:
        async with AsyncExitStack() as stack:
            if shared is None:
                shared = await stack.enter_async_context(shared_store(settings))
            assert shared is not None
            yield await stack.enter_async_context(_shared_books(settings, clock, shared))
        return
    data_dir = settings.data_dir.absolute()
    database = await Database.open(db_path if db_path is not None else data_dir / "sandkasten.db")
    try:
        journal = SqliteJournal(database, settings.retention)
        keys = await SqliteKeys.open(database)
        files = await DiskFileStore.open(data_dir / "files", database, clock, settings.file_rules)
        audit = open_audit(settings)
        async with _books(settings, journal, keys, files, audit) as books:
            if audit is not None:
                await _take_old_rows(journal, audit)
            yield books
    finally:
        await database.aclose()


@asynccontextmanager
async def _shared_books(
    settings: Settings, clock: Clock, shared: SharedStore
) -> AsyncIterator[Books]:
    from sandkasten.store.postgres.postgres_audit import PostgresAudit
    from sandkasten.store.postgres.postgres_files import PostgresFileStore
    from sandkasten.store.postgres.postgres_journal import PostgresJournal
    from sandkasten.store.postgres.postgres_keys import PostgresKeys

    database = shared.database
    async with _bucket(settings, database) as bucket:
        journal = PostgresJournal(database, shared.node, settings.retention, shared=shared.backends)
        keys = await PostgresKeys.open(database)
        files = PostgresFileStore(database, clock, settings.file_rules, bucket)
        own = open_audit(settings)
        audit = None
        if own is not None:
            keep = settings.retention
            audit = PostgresAudit(
                database, shared.node, own, max_bytes=keep.audit_bytes, keep_s=keep.audit_s
            )
        async with _books(settings, journal, keys, files, audit) as books:
            yield books


@asynccontextmanager
async def _bucket(
    settings: Settings, database: PostgresDatabase
) -> AsyncIterator[BucketContents | None]:
    """Open the bucket of stored files, and close it after the block; yield None without one."""
    if settings.bucket is None:
        yield None
        return
    from sandkasten.store.bucket.bucket import Bucket
    from sandkasten.store.postgres.bucket_contents import BucketContents

    async with Bucket(settings.bucket) as bucket:
        yield await BucketContents.open(database, bucket)


@asynccontextmanager
async def _books(
    settings: Settings,
    journal: Journal,
    keys: SqliteKeys | PostgresKeys,
    files: FileStore,
    audit: AuditDirectory | PostgresAudit | None,
) -> AsyncIterator[Books]:
    """Add recordings; close everything but the database after the block."""
    books = Books(journal, keys, files, _recordings(settings), audit)
    try:
        yield books
    finally:
        if audit is not None:
            await books.sync_audit_quietly()
            await audit.aclose()
        await keys.aclose()
        await journal.aclose()


def _recordings(settings: Settings) -> RecordingDirectory:
    return RecordingDirectory(
        settings.data_dir.absolute() / "recordings",
        settings.recording,
        settings.retention.sessions_s,
    )


async def _take_old_rows(journal: SqliteJournal, audit: AuditDirectory) -> None:
    """Move the rows that earlier versions kept in the database to the log."""
    rows = await journal.old_audit_rows()
    if rows:
        for row in rows[:-1]:
            audit.record(row)
        await audit.record_lasting(rows[-1])
        await journal.drop_old_audit_rows()
