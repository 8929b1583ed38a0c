"""The stored files of a daemon as a `FileStore`, for a process that works beside it.

The daemon holds the database of its data directory. Its socket has the operator's rights, and the
tenant is the operator's own.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from sandkasten.client.http.admin import HttpStored
from sandkasten.client.http.connection import Connection
from sandkasten.client.server.daemon_or_embedded import answers
from sandkasten.errors import UnsupportedByBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.journal_rows import StoredFile
    from sandkasten.ports import FileStore, MaxStoredBytes

Files: TypeAlias = "Sequence[StoredFile]"


def files_of_daemon(socket: str) -> AbstractAsyncContextManager[FileStore] | None:
    """Return the files of the daemon at a socket; None if none answers there."""
    return _opened(socket) if answers(socket) else None


@asynccontextmanager
async def _opened(socket: str) -> AsyncIterator[FileStore]:
    connection = Connection(f"unix://{quote(socket)}")
    try:
        yield DaemonFileStore(HttpStored(connection))
    finally:
        await connection.aclose()


class DaemonFileStore:
    def __init__(self, stored: HttpStored) -> None:
        self._stored = stored

    async def put(
        self,
        tenant: str,
        key: str | None,
        data: AsyncIterable[bytes],
        *,
        content_type: str = "application/octet-stream",
        expires_at: float | None = None,
        metadata: Mapping[str, str] | None = None,
        expect_sha256: str | None = None,
        expect_bytes: int | None = None,
        overwrite: bool = False,
        max_stored_bytes: MaxStoredBytes | None = None,
    ) -> StoredFile:
        """Store a file; the daemon applies its own limits."""
        if expect_sha256 is not None:
            raise _unsupported("a checksum in advance")
        return await self._stored.put(
            data,
            key=key,
            content_type=content_type,
            ttl_s=None if expires_at is None else max(1.0, expires_at - time.time()),
            metadata=metadata,
            overwrite=overwrite,
        )

    async def get(self, tenant: str, key: str) -> StoredFile:
        return await self._stored.get(key)

    def read(
        self, tenant: str, key: str, *, offset: int = 0, limit: int | None = None
    ) -> AbstractAsyncContextManager[tuple[StoredFile, AsyncIterator[bytes]]]:
        if offset or limit is not None:
            raise _unsupported("a part of a file")
        return self._stored.read(key)

    async def list(
        self, tenant: str, *, prefix: str = "", limit: int = 1000, after: str | None = None
    ) -> Files:
        files = [
            file for file in await self._stored.list(prefix) if after is None or file.key > after
        ]
        return files[:limit]

    async def delete(self, tenant: str, key: str) -> None:
        await self._stored.delete(key)

    async def usage(self, tenant: str) -> int:
        return sum(file.size_bytes for file in await self._stored.list())

    async def prune(self, now: float) -> int:
        """Return 0: the daemon removes what has expired."""
        return 0


def _unsupported(what: str) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"a process beside a daemon cannot ask its file store for {what}",
        hint="use the daemon itself: leave --embedded out",
    )
