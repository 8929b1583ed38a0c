"""A directory tree as a tar stream: files, directories and symbolic links, owned by root.

Reads in a thread, one piece ahead of the reader. Follows no link. If the reader leaves, reading
ends. Raises OSError.
"""

from __future__ import annotations

import os
import stat
import tarfile
from typing import TYPE_CHECKING, Final

from sandkasten.disk.cleanup import finish, in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterator
    from pathlib import Path

PIECE_BYTES: Final = 1 << 20


async def packed(tree: Path, prefix: str = "") -> AsyncGenerator[bytes, None]:
    """Yield the tar of everything below `tree`; `prefix` is put before each name."""
    pieces = _pieces(tree, prefix)
    try:
        while True:
            # A thread cannot be cancelled: wait for it before its file is closed.
            piece = await finish(in_thread(next, pieces, None))
            if piece is None:
                return
            yield piece
    finally:
        pieces.close()


def _pieces(tree: Path, prefix: str) -> Generator[bytes, None, None]:
    gathered = bytearray()
    for part in _parts(tree, prefix):
        gathered += part
        if len(gathered) >= PIECE_BYTES:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered) + bytes(2 * tarfile.BLOCKSIZE)


def _parts(tree: Path, prefix: str) -> Iterator[bytes]:
    yield from (_header(parent, tarfile.DIRTYPE, 0o755) for parent in _parents(prefix))
    for where, directories, files, fd in os.fwalk(tree, follow_symlinks=False, onerror=_raise):
        inside = os.path.join(prefix, os.path.relpath(where, tree))
        directories.sort()
        for name in sorted((*directories, *files)):
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            to = os.path.normpath(os.path.join(inside, name))
            if stat.S_ISLNK(status.st_mode):
                yield _header(to, tarfile.SYMTYPE, 0o777, link=os.readlink(name, dir_fd=fd))
            elif stat.S_ISDIR(status.st_mode):
                yield _header(to, tarfile.DIRTYPE, status.st_mode & 0o755)
            elif stat.S_ISREG(status.st_mode):
                yield from _file(name, fd, to)


def _file(name: str, fd: int, to: str) -> Iterator[bytes]:
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd), "rb") as file:
        status = os.fstat(file.fileno())
        yield _header(to, tarfile.REGTYPE, status.st_mode & 0o755, size=status.st_size)
        remaining = status.st_size
        while remaining:
            data = file.read(min(remaining, PIECE_BYTES))
            if not data:
                raise OSError(f"{to} became shorter while it was read")
            remaining -= len(data)
            yield data
    yield bytes(-status.st_size % tarfile.BLOCKSIZE)


def _header(name: str, kind: bytes, mode: int, *, size: int = 0, link: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.linkname = kind, mode, size, link
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _parents(prefix: str) -> list[str]:
    parts = [part for part in prefix.split("/") if part]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _raise(exc: OSError) -> None:
    raise exc
