"""Write a streamed archive to a scratch file for as long as it is read.

The file is in the store's own scratch directory under a private name, and is removed with the block
or with the process. A full disk raises QuotaExceeded and leaves nothing.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sandkasten.disk.os_errors import translated
from sandkasten.errors import SandkastenError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator
    from pathlib import Path

    from sandkasten.images.layers.image_store import LayerStore

# Collect this much before a thread writes it.
_PIECE_BYTES = 1024 * 1024


@asynccontextmanager
async def spooled(store: LayerStore, data: AsyncIterable[bytes]) -> AsyncIterator[Path]:
    place = store.place()
    path = (await asyncio.to_thread(place.__enter__)) / "archive"
    try:
        await _written(path, data)
        yield path
    except SandkastenError as exc:
        # The scratch path is private, and gone.
        exc.message = exc.message.replace(str(path), "the archive")
        raise
    finally:
        await asyncio.shield(asyncio.to_thread(place.__exit__, None, None, None))


async def _written(path: Path, data: AsyncIterable[bytes]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        gathered = bytearray()
        async for piece in data:
            gathered += piece
            if len(gathered) >= _PIECE_BYTES:
                await asyncio.to_thread(_write, fd, gathered)
                gathered = bytearray()
        await asyncio.to_thread(_write, fd, gathered)
    finally:
        os.close(fd)


def _write(fd: int, data: bytearray) -> None:
    view = memoryview(data)
    with translated("keep the archive"):
        while view:
            view = view[os.write(fd, view) :]
