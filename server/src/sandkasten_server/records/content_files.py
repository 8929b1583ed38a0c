"""Content on disk by its sha256 in `<root>/<two digits>/<digest>`; incoming data in `making/`.

Blocking except `receive`. Knows neither keys nor tenants. A file in `making/` is not referenced
until `place` renames it to its digest; `prepare` removes what a crash left there. A full disk
raises QuotaExceeded.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
from typing import TYPE_CHECKING, Any, Final

from sandkasten.disk.atomic_file import sync_directory
from sandkasten.disk.os_errors import translated
from sandkasten.errors import InternalError
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable
    from pathlib import Path

_PIECE: Final = 256 * 1024
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class Arrived:
    path: str
    size_bytes: int
    digest: str


class Content:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._making = root / "making"

    def prepare(self) -> set[str]:
        """Create the directories, remove unfinished content and return the digests that exist."""
        with translated("prepare the file store"):
            shutil.rmtree(self._making, ignore_errors=True)
            for directory in (self._root, self._making):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            names = (path.name for path in self._root.glob("[0-9a-f][0-9a-f]/*"))
            return {name for name in names if _DIGEST.match(name)}

    async def receive(self, data: AsyncIterable[bytes], allowed: Callable[[int], None]) -> Arrived:
        """Write the data to a private name, synced.

        `allowed` raises if the size is too large; after any error nothing is left.
        """
        path = str(self._making / secrets.token_hex(8))
        hashing = hashlib.sha256()
        size = 0
        with translated("store the file"):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                async for piece in data:
                    size += len(piece)
                    allowed(size)
                    await asyncio.to_thread(_append, fd, hashing, piece)
                await asyncio.to_thread(os.fsync, fd)
            except BaseException:
                os.unlink(path)
                raise
            finally:
                os.close(fd)
        return Arrived(path, size, hashing.hexdigest())

    def place(self, arrived: Arrived) -> None:
        """Move the content to the name of its digest, durably. Twice is fine."""
        target = self.path(arrived.digest)
        with translated("store the file"):
            target.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                os.replace(arrived.path, target)
            except FileNotFoundError:
                if not target.exists():
                    raise
            for directory in (target.parent, self._root):
                sync_directory(directory)

    def drop(self, arrived: Arrived) -> None:
        """Remove content that was received and not placed."""
        try:
            os.unlink(arrived.path)
        except FileNotFoundError:
            return

    def remove(self, digest: str) -> None:
        with translated("remove a file"):
            self.path(digest).unlink(missing_ok=True)

    def open(self, digest: str) -> int:
        """Return a descriptor. Raise FileNotFoundError if the content does not exist."""
        return os.open(self.path(digest), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def path(self, digest: str) -> Path:
        return self._root / digest[:2] / digest


async def pieces(fd: int, offset: int, remaining: int) -> AsyncIterator[bytes]:
    while remaining > 0:
        piece = await asyncio.to_thread(os.pread, fd, min(remaining, _PIECE), offset)
        if not piece:
            raise InternalError("a stored file is shorter than it was", hint="store it again")
        offset += len(piece)
        remaining -= len(piece)
        yield piece


def _append(fd: int, hashing: Any, piece: bytes) -> None:
    hashing.update(piece)
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]
