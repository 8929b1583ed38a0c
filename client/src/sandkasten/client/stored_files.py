"""The file store: the asynchronous client and its twin.

Files here outlive sandboxes. With a daemon they are the daemon's, over HTTP; without one they are
in the data directory, which one process at a time may open (Conflict while a daemon serves it).
"""

from __future__ import annotations

import asyncio
import builtins
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from sandkasten.client.blocking.twins import arguments_of, waiting
from sandkasten.client.server.admin_transport import books_of
from sandkasten.client.server.daemon_or_embedded import place_of
from sandkasten.errors import FileNotFound, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten.model.journal_rows import StoredFile

_PIECE: Final = 1 << 18


class AsyncStoredFiles:
    """The stored files of one server. Holds nothing open; create as many as you like."""

    def __init__(
        self,
        *,
        data_dir: str | PathLike[str] | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._place = place_of(data_dir, None, url, api_key)

    async def put(
        self,
        data: bytes | PathLike[str],
        *,
        key: str | None = None,
        content_type: str | None = None,
        ttl_seconds: float | None = None,
        metadata: Mapping[str, str] | None = None,
        overwrite: bool = False,
    ) -> StoredFile:
        """Store bytes, or the file at a path, whole or not at all; without a key it gets one."""
        async with books_of(self._place) as books:
            return await books.files.put(
                _pieces(data),
                key=key,
                content_type=content_type,
                ttl_s=ttl_seconds,
                metadata=metadata,
                overwrite=overwrite,
            )

    async def get(self, key: str) -> bytes:
        """Return the whole content; FileNotFound if there is none."""
        async with books_of(self._place) as books, books.files.read(key) as (_, pieces):
            return b"".join([piece async for piece in pieces])

    async def info(self, key: str) -> StoredFile:
        """Return size, type, checksum, and the times of creation and expiry."""
        async with books_of(self._place) as books:
            return await books.files.get(key)

    async def list(self, prefix: str = "") -> builtins.list[StoredFile]:
        """Return the files whose key has this prefix, by key."""
        async with books_of(self._place) as books:
            return builtins.list(await books.files.list(prefix))

    async def delete(self, key: str) -> None:
        """Delete a file; FileNotFound if there is none."""
        async with books_of(self._place) as books:
            await books.files.delete(key)


class StoredFiles:
    """The stored files of one server. Holds nothing open; create as many as you like."""

    @arguments_of(AsyncStoredFiles)
    def __init__(self, **kwargs: Any) -> None:
        self._twin = AsyncStoredFiles(**kwargs)

    put = waiting(AsyncStoredFiles.put)
    get = waiting(AsyncStoredFiles.get)
    info = waiting(AsyncStoredFiles.info)
    list = waiting(AsyncStoredFiles.list)
    delete = waiting(AsyncStoredFiles.delete)


async def _pieces(data: bytes | PathLike[str]) -> AsyncIterator[bytes]:
    if isinstance(data, bytes):
        for at in range(0, len(data), _PIECE):
            yield data[at : at + _PIECE]
        return
    if not isinstance(data, PathLike):
        raise InvalidRequest(
            "data must be bytes or a path", hint="encode a string first, or pass pathlib.Path(…)"
        )
    try:
        file = await asyncio.to_thread(open, data, "rb")
    except OSError as exc:
        raise FileNotFound(
            f"{data} cannot be read: {exc.strerror}", hint="name a file", path=str(data)
        ) from exc
    with file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece
