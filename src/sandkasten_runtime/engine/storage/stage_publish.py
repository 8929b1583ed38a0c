"""Stage stored files into a sandbox and publish files out of it.

Content is streamed, never whole in memory, and arrives whole or not at all. Content that leaves the
store is hashed on the way, so damaged content never becomes a file. Raises the errors of the file
verbs and of the store.
"""

from __future__ import annotations

import hashlib
import mimetypes
from typing import TYPE_CHECKING, Protocol

from sandkasten.errors import Conflict, InternalError, NotRegular
from sandkasten.model.files.file_store_rules import UNKNOWN_TYPE
from sandkasten.model.journal_rows import StagedFile

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.files.file_entries import FileEntry
    from sandkasten.model.journal_rows import StoredFile
    from sandkasten.ports import FileStore, MaxStoredBytes

_STAGED_MODE = 0o644


class FileVerbs(Protocol):
    """The file verbs that this module needs."""

    def read_stream(
        self, sandbox_id: str, path: str
    ) -> AbstractAsyncContextManager[tuple[FileEntry, AsyncIterator[bytes]]]: ...
    async def write(
        self,
        sandbox_id: str,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        overwrite: bool = True,
    ) -> FileEntry: ...


class StagePublish:
    def __init__(self, files: FileVerbs, store: FileStore) -> None:
        self._files = files
        self._store = store

    async def stage(
        self, tenant: str, sandbox_id: str, key: str, destination: str, *, overwrite: bool = True
    ) -> StagedFile:
        """Copy a stored file into a sandbox, creating missing directories."""
        async with self._store.read(tenant, key) as (row, pieces):
            entry = await self._files.write(
                sandbox_id,
                destination,
                verified(row, pieces),
                mode=_STAGED_MODE,
                overwrite=overwrite,
            )
        return StagedFile(entry.path, row.size_bytes, row.key, row.checksum)

    async def publish(
        self,
        tenant: str,
        sandbox_id: str,
        source: str,
        key: str | None = None,
        *,
        content_type: str | None = None,
        expires_at: float | None = None,
        expect_sha256: str | None = None,
        overwrite: bool = True,
        max_stored_bytes: MaxStoredBytes | None = None,
    ) -> StoredFile:
        """Copy a file of a sandbox into the store. Raise Conflict if the file shrinks while it is
        read.
        """
        async with self._files.read_stream(sandbox_id, source) as (entry, pieces):
            if entry.type != "file":
                raise NotRegular(
                    f"{entry.path} is not a regular file", hint="publish a regular file"
                )
            guessed = mimetypes.guess_type(entry.name, strict=False)[0]
            return await self._store.put(
                tenant,
                key,
                _whole(entry, pieces),
                content_type=content_type or guessed or UNKNOWN_TYPE,
                expires_at=expires_at,
                expect_sha256=expect_sha256,
                # Holes of a sparse file take no space in the sandbox, and would here.
                expect_bytes=entry.size,
                overwrite=overwrite,
                max_stored_bytes=max_stored_bytes,
            )


async def verified(row: StoredFile, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces; raise at the end, so that no file is made, if they differ from what was
    stored.
    """
    hashing = hashlib.sha256()
    async for piece in pieces:
        hashing.update(piece)
        yield piece
    if f"sha256:{hashing.hexdigest()}" != row.checksum:
        raise InternalError(
            f"the stored file {row.key} is damaged: its content has another sha256",
            hint="delete it and store it again; check the disk",
        )


async def _whole(entry: FileEntry, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    count = 0
    async for piece in pieces:
        count += len(piece)
        yield piece
    if count != entry.size:
        raise Conflict(
            f"{entry.path} changed while it was read ({count} of {entry.size} bytes)",
            hint="publish it when it is finished",
        )
