"""The file methods of a sandbox; `sandbox.py` has the others.

Every failure is a class of `errors`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

from sandkasten.client.process import AsyncWatch
from sandkasten.client.results import FileBytes, Transfer
from sandkasten.client.server.admin_transport import books_of
from sandkasten.client.stream_close import closing
from sandkasten.client.transfer import transfer
from sandkasten.errors import FileNotFound, PayloadTooLarge

if TYPE_CHECKING:
    import builtins
    from collections.abc import Sequence
    from os import PathLike

    from sandkasten.client.server.daemon_or_embedded import ServerAddress
    from sandkasten.client.server.transport import FilesTransport, Transport
    from sandkasten.model.files.file_entries import FileEntry, TarSummary
    from sandkasten.model.journal_rows import StagedFile, StoredFile

# The sandbox decides how long a listing is; this keeps a hostile one out of our memory.
MAX_LISTED: Final = 200_000
PAGE: Final = 5_000


class SandboxFiles:
    """The base class of `AsyncSandbox`."""

    if TYPE_CHECKING:
        _place: ServerAddress

        @property
        def id(self) -> str: ...
        async def transport(self) -> Transport: ...

    async def _files(self, user: str | int | None = None) -> FilesTransport:
        return (await self.transport()).files.by(_text(user))

    async def write(
        self,
        path: str,
        data: transfer.Source,
        *,
        mode: int | None = None,
        overwrite: bool = True,
        flush: bool = True,
        user: str | int | None = None,
    ) -> FileEntry:
        """Write a whole file; readers see the old file or the new one, never a part.

        A binary file object is read to its end and never held in memory as a whole. `flush=False`
        returns before the file is on disk. `user` is that of `exec`.
        """
        files = await self._files(user)
        write = partial(files.write, mode=mode, overwrite=overwrite, flush=flush)
        if isinstance(data, str | bytes):
            raw = data.encode() if isinstance(data, str) else data
            return await write(self.id, path, raw)
        async with closing(transfer.stream_of(data)) as stream:
            return await write(self.id, path, stream)

    async def read(
        self,
        path: str,
        *,
        offset: int = 0,
        limit: int | None = None,
        max_bytes: int | None = None,
        user: str | int | None = None,
    ) -> FileBytes:
        """Return the bytes of a file, or of a part of it.

        `limit` reads that many bytes from `offset`; `max_bytes` cuts, which `.truncated` shows.
        """
        files = await self._files(user)
        got = await files.read(self.id, path, offset=offset, limit=limit, max_bytes=max_bytes)
        return FileBytes(got.data, got.path, got.size, got.truncated)

    async def ls(
        self,
        path: str = ".",
        *,
        recursive: bool = False,
        limit: int | None = None,
        user: str | int | None = None,
    ) -> builtins.list[FileEntry]:
        """Return the entries of a directory by name: all, or the first `limit`."""
        files = await self._files(user)
        return await _list_all(files, self.id, path, recursive=recursive, limit=limit)

    async def stat(
        self, path: str, *, follow: bool = True, user: str | int | None = None
    ) -> FileEntry:
        return await (await self._files(user)).stat(self.id, path, follow=follow)

    async def exists(self, path: str, *, user: str | int | None = None) -> bool:
        """Return whether a path exists (a dangling link counts)."""
        try:
            await self.stat(path, follow=False, user=user)
        except FileNotFound:
            return False
        return True

    async def mkdir(
        self,
        path: str,
        *,
        parents: bool = True,
        exist_ok: bool = True,
        user: str | int | None = None,
    ) -> FileEntry:
        files = await self._files(user)
        return await files.mkdir(self.id, path, parents=parents, exist_ok=exist_ok)

    async def move(
        self,
        source: str,
        destination: str,
        *,
        overwrite: bool = False,
        user: str | int | None = None,
    ) -> FileEntry:
        files = await self._files(user)
        return await files.move(self.id, source, destination, overwrite=overwrite)

    async def remove(
        self,
        path: str,
        *,
        recursive: bool = False,
        missing_ok: bool = False,
        user: str | int | None = None,
    ) -> int:
        """Remove a file, or with `recursive` a tree; returns how many entries."""
        files = await self._files(user)
        return await files.remove(self.id, path, recursive=recursive, missing_ok=missing_ok)

    async def upload(
        self,
        local: str | PathLike[str],
        remote: str,
        *,
        progress: transfer.Progress | None = None,
        flush: bool = True,
        user: str | int | None = None,
    ) -> Transfer:
        """Copy a local file to `remote`, or the contents of a directory into `remote`.

        `flush=False` returns before the files are on disk.
        """
        files = await self._files(user)
        return await transfer.upload(files, self.id, Path(local), remote, progress, flush=flush)

    async def download(
        self,
        remote: str,
        local: str | PathLike[str],
        *,
        max_bytes: int = transfer.MAX_DOWNLOAD_BYTES,
        progress: transfer.Progress | None = None,
        exclude: Sequence[str] = (),
        user: str | int | None = None,
    ) -> Transfer:
        """Copy a file to `local` (or into it, if it is a directory), or a tree's contents into it.

        `exclude` leaves out parts of a tree: a name at any depth (`"*.pyc"`), or a path from its
        root (`"/build/cache"`), each with everything below. Entries that would land outside
        `local`, and anything but files, directories and links that stay inside, are left out and
        named in `skipped`.
        """
        files = await self._files(user)
        return await transfer.download(
            files, self.id, remote, Path(local), max_bytes, progress, exclude
        )

    async def upload_tar(
        self,
        data: transfer.Source,
        remote: str = ".",
        *,
        flush: bool = True,
        user: str | int | None = None,
    ) -> TarSummary:
        """Unpack an uncompressed tar (bytes, a binary file or an iterator of bytes) into `remote`.

        It is unpacked inside the sandbox and never held in memory as a whole. A member that leads
        out of `remote` is an error.
        """
        files = await self._files(user)
        return await transfer.upload_tar(files, self.id, data, remote, flush=flush)

    async def download_tar(
        self,
        remote: str,
        file: IO[bytes],
        *,
        max_bytes: int = transfer.MAX_DOWNLOAD_BYTES,
        exclude: Sequence[str] = (),
        user: str | int | None = None,
    ) -> int:
        """Write a tar of a directory to a binary file and return its size.

        `exclude` is that of `download`; `max_bytes` counts what it leaves out, too. Its members are
        the sandbox's: unpack it as you would any archive from elsewhere.
        """
        files = await self._files(user)
        return await transfer.download_tar(files, self.id, remote, file, max_bytes, exclude)

    async def stage(self, file_key: str, destination: str, *, overwrite: bool = True) -> StagedFile:
        """Put a file of the file store into the sandbox, as a file named `destination`."""
        files = await self._files()
        async with books_of(self._place) as books:
            return await books.files.stage(
                files, self.id, file_key, destination, overwrite=overwrite
            )

    async def publish(
        self,
        source: str,
        file_key: str | None = None,
        *,
        content_type: str | None = None,
        ttl_seconds: float | None = None,
        overwrite: bool = True,
    ) -> StoredFile:
        """Keep a whole file of the sandbox in the file store, where it outlives the sandbox.

        Without a key it gets one (`f_<id>`); `StoredFiles` lists, gets and deletes.
        """
        files = await self._files()
        async with books_of(self._place) as books:
            return await books.files.publish(
                files,
                self.id,
                source,
                file_key,
                content_type=content_type,
                ttl_s=ttl_seconds,
                overwrite=overwrite,
            )

    def watch(
        self, path: str = ".", *, recursive: bool = True, user: str | int | None = None
    ) -> AsyncWatch:
        """Watch changes below a path until it is closed."""
        return AsyncWatch(
            self,
            lambda transport: transport.files.by(_text(user)).watch(
                self.id, path, recursive=recursive
            ),
        )


def _text(user: str | int | None) -> str | None:
    return str(user) if type(user) is int else cast("str | None", user)


async def _list_all(
    files: FilesTransport, sandbox_id: str, path: str, *, recursive: bool, limit: int | None
) -> list[FileEntry]:
    """Return all entries (PayloadTooLarge over MAX_LISTED), or the first `limit`."""
    entries: list[FileEntry] = []
    cursor: str | None = None
    while limit is None or len(entries) < limit:
        size = PAGE if limit is None else min(PAGE, limit - len(entries))
        page = await files.list(sandbox_id, path, recursive=recursive, limit=size, cursor=cursor)
        entries.extend(page.entries)
        cursor = page.next
        # An empty page that promises more would keep us asking for ever.
        if cursor is None or not page.entries:
            break
        if limit is None and len(entries) > MAX_LISTED:
            raise PayloadTooLarge(
                f"{path} has more than {MAX_LISTED} entries",
                hint="list a directory below it, or give a limit",
            )
    return entries
