"""The persistent stores of a data directory: one database with journal, keys and stored files,
and the audit log. Where the settings name a shared database, they are in it.

They are opened and closed together. The caller holds the lock of the data directory.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from sandkasten.errors import SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.assembly.engine_assembly import open_audit
from sandkasten_runtime.assembly.shared_store import shared_store
from sandkasten_runtime.assembly.store_catalog import active_store
from sandkasten_runtime.store.record_rules import FileRules, RecordingRules, Retention
from sandkasten_server.daemon.shared_records import shared_records
from sandkasten_server.records.file_store import DiskFileStore
from sandkasten_server.records.recording_directory import RecordingDirectory
from sandkasten_server.records.sqlite.database import Database
from sandkasten_server.records.sqlite.sqlite_journal import (
    drop_old_audit_rows,
    old_audit_rows,
    sqlite_journal,
)
from sandkasten_server.records.sqlite.sqlite_keys import SqliteKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten.ports import Clock, FileStore, Journal, Keys
    from sandkasten.ports.store_plugins import SharedStore
    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_runtime.store.audit_directory import AuditDirectory
    from sandkasten_server.records.record_plugins import KeptAudit, OpenKeys, SharedRecords

log = logging.getLogger("sandkasten.store")


@dataclass(frozen=True, slots=True)
class Books:
    journal: Journal
    keys: Keys
    files: FileStore
    recordings: RecordingDirectory
    audit: KeptAudit | None = None

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
        recorded = await self.journal.audit_head()
        if head.seq > (0 if recorded is None else recorded.seq):
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

    `db_path`: the SQLite database, if it is outside the data directory. `shared`: the shared
    database, if it is open already.
    """
    async with AsyncExitStack() as stack:
        if shared is None and active_store(settings) is not None:
            shared = await stack.enter_async_context(shared_store(settings))
        if shared is None:
            opening = _own_books(settings, clock, db_path)
        else:
            opening = _shared_books(settings, clock, shared_records(settings, shared))
        yield await stack.enter_async_context(opening)


@asynccontextmanager
async def _own_books(
    settings: Settings, clock: Clock, db_path: Path | None
) -> AsyncIterator[Books]:
    data_dir = settings.data_dir.absolute()
    database = await Database.open(db_path if db_path is not None else data_dir / "sandkasten.db")
    try:
        journal = sqlite_journal(database, settings.of(Retention))
        keys = await SqliteKeys.open(database)
        files = await DiskFileStore.open(
            data_dir / "files", database, clock, settings.of(FileRules)
        )
        audit = open_audit(settings)
        async with _books(settings, journal, keys, files, audit) as books:
            if audit is not None:
                await _take_old_rows(database, audit)
            yield books
    finally:
        await database.aclose()


@asynccontextmanager
async def _shared_books(
    settings: Settings, clock: Clock, records: SharedRecords
) -> AsyncIterator[Books]:
    keep = settings.of(Retention)
    async with records.files(clock, settings.of(FileRules)) as files:
        journal = records.journal(keep)
        keys = await records.keys()
        own = open_audit(settings)
        audit = None if own is None else records.audit(own, keep)
        async with _books(settings, journal, keys, files, audit) as books:
            yield books


@asynccontextmanager
async def _books(
    settings: Settings,
    journal: Journal,
    keys: OpenKeys,
    files: FileStore,
    audit: KeptAudit | None,
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
        settings.of(RecordingRules),
        settings.of(Retention).sessions_s,
    )


async def _take_old_rows(database: Database, audit: AuditDirectory) -> None:
    """Move the rows that earlier versions kept in the database to the log."""
    rows = await old_audit_rows(database)
    if rows:
        for row in rows[:-1]:
            audit.record(row)
        await audit.record_lasting(rows[-1])
        await drop_old_audit_rows(database)
