"""The file store of a data directory, opened for one call at a time.

For a long-lived process that is not a daemon: holding the store open would prevent a daemon or
another such process from opening it. While a daemon has it, the daemon is asked (`beside`).
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from sandkasten.errors import Conflict
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.daemon.data_dir_lock import only_daemon
from sandkasten_server.daemon.persistent_stores import open_books
from sandkasten_server.daemon.settings.http_settings import HttpSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.journal_rows import StoredFile
    from sandkasten.ports import FileStore, MaxStoredBytes
    from sandkasten_runtime.assembly.settings.resolver import Settings

FilesBeside: TypeAlias = "Callable[[str], AbstractAsyncContextManager[FileStore] | None]"
Files: TypeAlias = "Sequence[StoredFile]"

# Another such process holds the lock for one transfer; a daemon holds it for its lifetime.
_PATIENCE_S: Final = 30.0
_RETRY_S: Final = 0.05


class TransientFileStore:
    """A `FileStore`."""

    def __init__(self, settings: Settings, beside: FilesBeside | None = None) -> None:
        """`beside` opens the files of a daemon at a socket, if one answers there."""
        self._settings = settings
        self._beside = beside
        # The lock belongs to the process, so it does not serialise our own calls.
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[FileStore]:
        socket = os.fspath(self._settings.of(HttpSettings).socket)
        daemons = None if self._beside is None else await asyncio.to_thread(self._beside, socket)
        if daemons is not None:
            async with daemons as files:
                yield files
            return
        data_dir = prepare_data_dir(self._settings.data_dir)
        loop = asyncio.get_running_loop()
        async with self._turn:
            until = loop.time() + _PATIENCE_S
            while True:
                lock = only_daemon(data_dir)
                try:
                    lock.__enter__()
                    break
                except Conflict as exc:
                    if loop.time() > until:
                        raise Conflict(
                            f"another process has the file store in {data_dir}",
                            hint="if a daemon has it, leave --embedded out; if a command has it, "
                            "wait for its end",
                        ) from exc
                await asyncio.sleep(_RETRY_S)
            try:
                async with open_books(
                    self._settings, SystemClock(), self._settings.of(HttpSettings).db_path
                ) as books:
                    yield books.files
            finally:
                lock.__exit__(None, None, None)

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
        async with self._open() as files:
            return await files.put(
                tenant,
                key,
                data,
                content_type=content_type,
                expires_at=expires_at,
                metadata=metadata,
                expect_sha256=expect_sha256,
                expect_bytes=expect_bytes,
                overwrite=overwrite,
                max_stored_bytes=max_stored_bytes,
            )

    async def get(self, tenant: str, key: str) -> StoredFile:
        async with self._open() as files:
            return await files.get(tenant, key)

    @asynccontextmanager
    async def read(
        self, tenant: str, key: str, *, offset: int = 0, limit: int | None = None
    ) -> AsyncIterator[tuple[StoredFile, AsyncIterator[bytes]]]:
        async with (
            self._open() as files,
            files.read(tenant, key, offset=offset, limit=limit) as opened,
        ):
            yield opened

    async def list(
        self, tenant: str, *, prefix: str = "", limit: int = 1000, after: str | None = None
    ) -> Files:
        async with self._open() as files:
            return await files.list(tenant, prefix=prefix, limit=limit, after=after)

    async def delete(self, tenant: str, key: str) -> None:
        async with self._open() as files:
            await files.delete(tenant, key)

    async def usage(self, tenant: str) -> int:
        async with self._open() as files:
            return await files.usage(tenant)

    async def prune(self, now: float) -> int:
        async with self._open() as files:
            return await files.prune(now)
