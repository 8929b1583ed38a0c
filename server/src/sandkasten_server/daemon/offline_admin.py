"""Keys, stored files and audit log of a data directory that no daemon serves.

For the operator's command line. Holds the daemon's lock while it is open: Conflict when a daemon
has it. Changes are audited as through a daemon.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from sandkasten.errors import QuotaExceeded, UnsupportedByBackend
from sandkasten.model.access.api_keys import MadeKey, make_key, new_row, no_such_key
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.audit_records import AuditRow
from sandkasten.model.files.file_store_rules import UNKNOWN_TYPE
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.assembly.engine_assembly import open_audit
from sandkasten_runtime.assembly.store_catalog import active_store
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.storage.stage_publish import StagePublish
from sandkasten_server.daemon.data_dir_lock import only_daemon
from sandkasten_server.daemon.persistent_stores import Books, open_books
from sandkasten_server.daemon.settings.http_settings import HttpSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.access.api_keys import KeyRequest
    from sandkasten.model.access.tenancy import QuotaUsage
    from sandkasten.model.audit_records import AuditFilter, AuditHead, AuditReport
    from sandkasten.model.journal_rows import KeyRow, StagedFile, StoredFile
    from sandkasten.ports import AuditLog, Clock
    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_runtime.engine.storage.stage_publish import FileVerbs

KeyRows: TypeAlias = "Sequence[KeyRow]"
Files: TypeAlias = "Sequence[StoredFile]"


@asynccontextmanager
async def offline_books(settings: Settings) -> AsyncIterator[OfflineBooks | OfflineAudit]:
    data_dir = prepare_data_dir(settings.data_dir)
    clock = SystemClock()
    with only_daemon(data_dir):
        # A daemon that just ended may have made it.
        database = settings.of(HttpSettings).db_path or data_dir / "sandkasten.db"
        new = active_store(settings) is None and not database.exists()
        async with AsyncExitStack() as stack:
            try:
                opening = open_books(settings, clock, settings.of(HttpSettings).db_path)
                books = await stack.enter_async_context(opening)
            except QuotaExceeded as exc:
                audit = open_audit(settings) if new else None
                if audit is None:
                    raise
                stack.push_async_callback(audit.aclose)
                database.unlink(missing_ok=True)
                yield OfflineAudit(audit, exc)
            else:
                yield OfflineBooks(books, clock)


class OfflineAudit:
    """Only the audit log, which can be read when the disk has no room for a new database."""

    def __init__(self, audit: AuditLog, full: QuotaExceeded) -> None:
        self._log = audit
        self._full = full

    @property
    def keys(self) -> _Keys:
        raise self._full

    @property
    def files(self) -> _Files:
        raise self._full

    async def audited(self, wanted: AuditFilter) -> Sequence[AuditRow]:
        return await self._log.read(wanted)

    async def audit_verified(self, head: AuditHead | None = None) -> AuditReport:
        return await self._log.verify([] if head is None else [head])

    @asynccontextmanager
    async def audit_lines(self) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self._log.lines()


class OfflineBooks:
    """The stores, used as the operator's own tenant."""

    def __init__(self, books: Books, clock: Clock) -> None:
        self._books = books
        self.keys = _Keys(books, clock)
        self.files = _Files(books, clock)

    async def audited(self, wanted: AuditFilter) -> Sequence[AuditRow]:
        return await self._audit.read(wanted)

    async def audit_verified(self, head: AuditHead | None = None) -> AuditReport:
        journal_head = await self._books.journal.audit_head()
        return await self._audit.verify(
            [candidate for candidate in (head, journal_head) if candidate is not None]
        )

    @asynccontextmanager
    async def audit_lines(self) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self._audit.lines()

    @property
    def _audit(self) -> AuditLog:
        if self._books.audit is None:
            raise UnsupportedByBackend(
                "this data directory has no audit log", hint="set audit.enabled"
            )
        return self._books.audit


class _Keys:
    def __init__(self, books: Books, clock: Clock) -> None:
        self._books = books
        self._clock = clock

    async def create(self, request: KeyRequest) -> MadeKey:
        key = make_key()
        row = new_row(request, key, self._clock.now(), DEFAULT_TENANT)
        await self._books.keys.add(row, key.hashed)
        await _audit(self._books, self._clock, "key.create", row.id)
        return MadeKey(row, key.text)

    async def list(self, tenant: str | None = None) -> KeyRows:
        return await self._books.keys.list(tenant)

    async def usage(self) -> QuotaUsage:
        raise UnsupportedByBackend(
            "quotas apply to requests to a daemon, and none is running",
            hint="start one: sandkasten serve",
        )

    async def revoke(self, key_id: str) -> KeyRow:
        row = await self._books.keys.revoke(key_id, self._clock.now())
        if row is None:
            raise no_such_key()
        await _audit(self._books, self._clock, "key.revoke", key_id)
        return row


class _Files:
    def __init__(self, books: Books, clock: Clock) -> None:
        self._books = books
        self._clock = clock

    async def put(
        self,
        data: AsyncIterable[bytes],
        *,
        key: str | None = None,
        content_type: str | None = None,
        ttl_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
        overwrite: bool = False,
    ) -> StoredFile:
        row = await self._books.files.put(
            DEFAULT_TENANT,
            key,
            data,
            content_type=content_type or UNKNOWN_TYPE,
            expires_at=None if ttl_s is None else self._clock.now() + ttl_s,
            metadata=metadata,
            overwrite=overwrite,
        )
        await _audit(self._books, self._clock, "file.create", row.key)
        return row

    async def get(self, key: str) -> StoredFile:
        return await self._books.files.get(DEFAULT_TENANT, key)

    def read(
        self, key: str
    ) -> AbstractAsyncContextManager[tuple[StoredFile, AsyncIterator[bytes]]]:
        return self._books.files.read(DEFAULT_TENANT, key)

    async def list(self, prefix: str = "") -> Files:
        # A negative limit means no limit in SQLite.
        return await self._books.files.list(DEFAULT_TENANT, prefix=prefix, limit=-1)

    async def delete(self, key: str) -> None:
        await self._books.files.delete(DEFAULT_TENANT, key)
        await _audit(self._books, self._clock, "file.delete", key)

    async def stage(
        self,
        files: FileVerbs,
        sandbox_id: str,
        key: str,
        destination: str,
        *,
        overwrite: bool = True,
    ) -> StagedFile:
        filing = StagePublish(files, self._books.files)
        return await filing.stage(DEFAULT_TENANT, sandbox_id, key, destination, overwrite=overwrite)

    async def publish(
        self,
        files: FileVerbs,
        sandbox_id: str,
        source: str,
        key: str | None = None,
        *,
        content_type: str | None = None,
        ttl_s: float | None = None,
        overwrite: bool = True,
    ) -> StoredFile:
        row = await StagePublish(files, self._books.files).publish(
            DEFAULT_TENANT,
            sandbox_id,
            source,
            key,
            content_type=content_type,
            expires_at=None if ttl_s is None else self._clock.now() + ttl_s,
            overwrite=overwrite,
        )
        await _audit(self._books, self._clock, "file.create", row.key)
        return row


async def _audit(books: Books, clock: Clock, action: str, target: str) -> None:
    if books.audit is not None:
        row = AuditRow(0, clock.now(), DEFAULT_TENANT, None, action, target, "ok")
        await books.audit.record_lasting(row)
