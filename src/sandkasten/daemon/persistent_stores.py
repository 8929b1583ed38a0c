"""The persistent stores of a data directory: one database with journal, keys and stored files.

They are opened and closed together. The caller holds the lock of the data directory.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from sandkasten.errors import SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.store.file_store import DiskFileStore
from sandkasten.store.sqlite.database import Database
from sandkasten.store.sqlite.sqlite_journal import SqliteJournal
from sandkasten.store.sqlite.sqlite_keys import SqliteKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.ports import Clock


log = logging.getLogger("sandkasten.store")


@dataclass(frozen=True, slots=True)
class Books:
    journal: SqliteJournal
    keys: SqliteKeys
    files: DiskFileStore

    async def prune(self, now: float) -> int:
        """Delete rows past their retention; return how many."""
        return await self.journal.prune(now) + await self.files.prune(now)

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
    settings: Settings, clock: Clock, db_path: Path | None = None
) -> AsyncIterator[Books]:
    """`db_path`: the database, if it is outside the data directory."""
    data_dir = settings.data_dir.absolute()
    database = await Database.open(db_path if db_path is not None else data_dir / "sandkasten.db")
    try:
        journal = SqliteJournal(database, settings.retention)
        keys = await SqliteKeys.open(database)
        files = await DiskFileStore.open(data_dir / "files", database, clock, settings.file_rules)
        try:
            yield Books(journal, keys, files)
        finally:
            await keys.aclose()
            await journal.aclose()
    finally:
        await database.aclose()
