"""Keys, the audit and stored files of a server, as Protocols.

A daemon has them over HTTP; without one, this process opens the same database itself, under the
same lock. Only classes of `errors` leave an implementation.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from sandkasten.client.server.daemon_or_embedded import find_server, no_tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.client.server.daemon_or_embedded import ServerAddress
    from sandkasten.client.server.transport import FilesTransport
    from sandkasten.model.access.api_keys import KeyRequest, MadeKey
    from sandkasten.model.access.tenancy import QuotaUsage
    from sandkasten.model.audit_records import AuditFilter, AuditHead, AuditReport, AuditRow
    from sandkasten.model.journal_rows import KeyRow, StagedFile, StoredFile


class KeysTransport(Protocol):
    async def create(self, request: KeyRequest) -> MadeKey: ...
    async def list(self, tenant: str | None = None) -> Sequence[KeyRow]: ...
    async def usage(self) -> QuotaUsage:
        """Return what the tenant uses, and the quota of the key. Requires a daemon."""
        ...

    async def revoke(self, key_id: str) -> KeyRow:
        """Revoke a key; NotFound if there is none. Twice is fine."""
        ...


class StoredTransport(Protocol):
    """The file store of the caller's tenant."""

    async def put(
        self,
        data: AsyncIterable[bytes],
        *,
        key: str | None = None,
        content_type: str | None = None,
        ttl_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
        overwrite: bool = False,
    ) -> StoredFile: ...
    async def get(self, key: str) -> StoredFile: ...
    def read(
        self, key: str
    ) -> AbstractAsyncContextManager[tuple[StoredFile, AsyncIterator[bytes]]]: ...
    async def list(self, prefix: str = "") -> Sequence[StoredFile]:
        """Return all files, by key."""
        ...

    async def delete(self, key: str) -> None: ...
    async def stage(
        self,
        files: FilesTransport,
        sandbox_id: str,
        key: str,
        destination: str,
        *,
        overwrite: bool = True,
    ) -> StagedFile:
        """Copy a file into a sandbox; `files` reaches the sandbox if this store cannot."""
        ...

    async def publish(
        self,
        files: FilesTransport,
        sandbox_id: str,
        source: str,
        key: str | None = None,
        *,
        content_type: str | None = None,
        ttl_s: float | None = None,
        overwrite: bool = True,
    ) -> StoredFile: ...


class BooksTransport(Protocol):
    @property
    def keys(self) -> KeysTransport: ...
    @property
    def files(self) -> StoredTransport: ...
    async def audited(self, wanted: AuditFilter) -> Sequence[AuditRow]:
        """Return records, oldest first."""
        ...

    async def audit_verified(self, head: AuditHead | None = None) -> AuditReport:
        """Check the audit log, also that it contains `head`."""
        ...

    def audit_lines(self) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open the audit log for reading, in pieces: one record per line."""
        ...


@asynccontextmanager
async def books_of(place: ServerAddress) -> AsyncIterator[BooksTransport]:
    """Open the records of a daemon, or of a data directory that no daemon serves."""
    place = await asyncio.to_thread(find_server, place)
    if place.url is None:
        no_tenant(place)
        from sandkasten.client.server.embedded import open_books

        async with open_books(place) as opened:
            yield opened
        return
    from sandkasten.client.http.admin import HttpBooks
    from sandkasten.client.http.connection import Connection

    connection = Connection(place.url, place.api_key, place.tenant)
    try:
        yield HttpBooks(connection)
    finally:
        await connection.aclose()
