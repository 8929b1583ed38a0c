"""Transfer of files and trees without holding them in memory.

A local path is the caller's own and trusted; everything from the sandbox is not (see
`tar_archive`). A file arrives whole or not at all; a tree may arrive in part if the transfer fails.
Local problems are FileTrouble, those of the sandbox its own errors.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
)
from contextlib import ExitStack, aclosing
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final, cast

from sandkasten.client.results import Transfer
from sandkasten.client.stream_close import closing
from sandkasten.disk.atomic_file import overwriting
from sandkasten.errors import FileTrouble, InvalidRequest, PayloadTooLarge, SandkastenError

if TYPE_CHECKING:
    from sandkasten.client.server.transport import FilesTransport
    from sandkasten.model.files.file_entries import TarSummary

Source = str | bytes | bytearray | memoryview | IO[bytes] | AsyncIterable[bytes] | Iterator[bytes]
"""What can be written into a file of a sandbox."""
Progress = Callable[[int], None]
"""Called on the event loop with the number of bytes moved since the last call; it must be quick."""

CHUNK: Final = 1024 * 1024
# A sandbox can show a file of any size that costs it nothing (a sparse one). Larger than any
# usual workspace, smaller than most disks.
MAX_DOWNLOAD_BYTES: Final = 8 * 1024**3


def stream_of(data: Source) -> AsyncIterator[bytes]:
    """Return the caller's data as a stream of bytes; InvalidRequest for other types."""
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return slices_of(memoryview(data).cast("B"))
    if isinstance(data, AsyncIterable):
        return aiter(data)
    if hasattr(data, "read"):
        return blocks_of(cast("IO[bytes]", data))
    if isinstance(data, Iterator):
        return pieces_of(data)
    raise InvalidRequest(
        f"data must be str, bytes, a binary file or an iterator, got {type(data).__name__}",
        hint="encode it first",
        field="data",
    )


async def blocks_of(file: IO[bytes]) -> AsyncGenerator[bytes]:
    """Yield the rest of a blocking file, read in a thread."""
    while block := await asyncio.to_thread(file.read, CHUNK):
        if not isinstance(block, bytes):
            raise InvalidRequest(
                "the file does not return bytes", hint='open it with mode "rb"', field="data"
            )
        yield block


async def pieces_of(pieces: Iterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield what a blocking iterator yields, run in a thread."""
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise InvalidRequest(
                "the iterator does not yield bytes", hint="encode them first", field="data"
            )
        yield bytes(piece)


async def slices_of(data: memoryview) -> AsyncGenerator[bytes]:
    """Yield views of a buffer, without a copy."""
    for start in range(0, len(data), CHUNK):
        yield cast("bytes", data[start : start + CHUNK])


async def upload(
    files: FilesTransport,
    sandbox_id: str,
    local: Path,
    remote: str,
    progress: Progress | None = None,
    *,
    flush: bool = True,
) -> Transfer:
    """Copy a file to `remote`, or the contents of a directory into `remote`."""
    # Tar and what it brings along are only for trees; most programs never move one.
    from sandkasten.client.transfer.tar_archive import Tally, pack

    tally = Tally()
    try:
        if await asyncio.to_thread(local.is_dir):
            async with aclosing(pack(local, tally)) as packed:
                await files.tar_in(sandbox_id, remote, _counted(packed, progress), flush=flush)
            where = (await files.stat(sandbox_id, remote)).path
        else:
            with local.open("rb") as file:
                status = os.fstat(file.fileno())
                async with aclosing(blocks_of(file)) as blocks:
                    entry = await files.write(
                        sandbox_id,
                        remote,
                        _counted(blocks, progress),
                        mode=status.st_mode & 0o777,
                        flush=flush,
                    )
            tally.files, tally.bytes, where = 1, entry.size, entry.path
    except SandkastenError:
        raise
    except OSError as exc:
        raise FileTrouble(
            f"reading {exc.filename or local} failed: {exc.strerror or exc}",
            hint="check the path and its permissions on this machine",
        ) from exc
    return Transfer(where, tally.files, tally.bytes, tuple(tally.skipped))


async def download(
    files: FilesTransport,
    sandbox_id: str,
    remote: str,
    local: Path,
    max_bytes: int = MAX_DOWNLOAD_BYTES,
    progress: Progress | None = None,
    exclude: Iterable[str] = (),
) -> Transfer:
    """Copy a file to `local` (or into it, if it is a directory), or a tree's contents into it."""
    entry = await files.stat(sandbox_id, remote)
    if entry.is_dir:
        from sandkasten.client.transfer.tar_archive import Exclusions, Tally, unpack

        tally, without = Tally(), Exclusions(exclude)
        async with closing(files.tar_out(sandbox_id, remote)) as chunks:
            counted = _counted(chunks, progress)
            await unpack(counted, local, tally, max_bytes=max_bytes, exclude=without)
        return Transfer(str(local), tally.files, tally.bytes, tuple(tally.skipped))
    inside = await asyncio.to_thread(local.is_dir)
    target = local / PurePosixPath(entry.path).name if inside else local
    size = await _download_file(files, sandbox_id, remote, target, max_bytes, progress)
    return Transfer(str(target), 1, size)


async def _download_file(
    files: FilesTransport,
    sandbox_id: str,
    remote: str,
    target: Path,
    max_bytes: int,
    progress: Progress | None,
) -> int:
    from sandkasten.client.transfer.tar_archive import keep_time

    async with files.read_stream(sandbox_id, remote) as (entry, chunks):
        if entry.size > max_bytes:
            raise PayloadTooLarge(
                f"{remote} has {entry.size} bytes, more than {max_bytes}", hint="raise max_bytes"
            )
        moved = 0
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:
                file = opened.enter_context(overwriting(target))
                async for chunk in _counted(chunks, progress):
                    await asyncio.to_thread(file.write, chunk)
                    moved += len(chunk)
                os.fchmod(file.fileno(), entry.mode & 0o777)
                await asyncio.to_thread(keep_time, file, entry.mtime_unix)
                # In a thread: a FIFO blocks until it has a reader.
                await asyncio.to_thread(opened.close)
        except SandkastenError:
            raise
        except OSError as exc:
            raise FileTrouble(
                f"writing {target} failed: {exc.strerror or exc}",
                hint="check the free space and the permissions of the destination",
            ) from exc
    return moved


async def upload_tar(
    files: FilesTransport, sandbox_id: str, data: Source, remote: str, *, flush: bool = True
) -> TarSummary:
    """Unpack a tar into the directory `remote`."""
    async with closing(stream_of(data)) as chunks:
        return await files.tar_in(sandbox_id, remote, chunks, flush=flush)


async def download_tar(
    files: FilesTransport,
    sandbox_id: str,
    remote: str,
    file: IO[bytes],
    max_bytes: int,
    exclude: Iterable[str] = (),
) -> int:
    """Write a tar of the directory `remote` to a binary file; returns how many bytes."""
    from sandkasten.client.transfer.tar_archive import Exclusions, copy_without

    if without := Exclusions(exclude):
        with tempfile.TemporaryFile() as whole:
            await download_tar(files, sandbox_id, remote, whole, max_bytes)
            whole.seek(0)
            return await asyncio.to_thread(copy_without, whole, file, without)
    moved = 0
    async with closing(files.tar_out(sandbox_id, remote)) as chunks:
        async for chunk in chunks:
            moved += len(chunk)
            if moved > max_bytes:
                raise PayloadTooLarge(
                    f"the tar of {remote} is larger than {max_bytes} bytes",
                    hint="raise max_bytes, or download a part of the tree",
                )
            await asyncio.to_thread(file.write, chunk)
    return moved


async def _counted(
    chunks: AsyncIterable[bytes], progress: Progress | None
) -> AsyncGenerator[bytes]:
    async for chunk in chunks:
        yield chunk
        if progress is not None:
            progress(len(chunk))
