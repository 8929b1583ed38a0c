"""Files of the recipe's directory as a layer: scanned, hashed, and written as a tar.

Nothing outside the directory is read: links are copied as links, and a path that leads through one
is refused. The same content gives the same bytes, whatever the file times are. Raises BuildFailed,
also for OSError of the disk.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from sandkasten.errors import BuildFailed
from sandkasten.images.layers.overlay import refuse_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sandkasten.images.layers.overlay import Parent

_CHUNK: Final = 1024 * 1024
MAX_FILES: Final = 100_000
# The earliest time that zip archives can hold: some tools refuse to pack older ones.
_EPOCH: Final = 315_532_800
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Found:
    """One entry, named relative to what is copied ("" is the root of the copy)."""

    name: str
    kind: str
    """`file`, `directory` or `link`."""
    mode: int
    size: int = 0
    content: str = ""
    """A file's digest, or a link's target."""


@dataclass(frozen=True, slots=True)
class Picked:
    """What a copy step copies: its entries, parents first, and a digest of them all."""

    path: str
    entries: tuple[Found, ...]
    digest: str

    @property
    def is_directory(self) -> bool:
        return self.entries[0].kind == "directory"


def pick(context: Path, source: str) -> Picked:
    """Scan everything at `source` below `context`, once."""
    parts = [part for part in source.split("/") if part not in ("", ".")]
    try:
        fd = _descend(context, parts[:-1], source)
        try:
            entries = tuple(_scan(fd, parts[-1] if parts else ".", ""))
        finally:
            os.close(fd)
    except OSError as exc:
        raise BuildFailed(
            f"{source} cannot be copied: {exc.strerror}",
            hint=f"it must lie below {context}",
        ) from exc
    told = hashlib.sha256()
    for one in entries:
        line = [one.name, one.kind, f"{one.mode:o}", one.content]
        told.update(b"\0".join(os.fsencode(part) for part in line) + b"\0\n")
    return Picked(source, entries, told.hexdigest())


def write_copy(
    context: Path,
    picked: Picked,
    parents: Sequence[Parent],
    to: str,
    out: BinaryIO,
    *,
    mode: int | None,
    owner: tuple[int, int],
    progress: Callable[[int], None],
) -> None:
    """Write the tar: directories on the way as the image has them, then what is copied, at `to`."""
    for parent in parents:
        info = _info(parent.path, tarfile.DIRTYPE, parent.mode, (parent.uid, parent.gid))
        out.write(_header(info))
    parts = [part for part in picked.path.split("/") if part not in ("", ".")]
    for one in picked.entries:
        name = posixpath.join(to, one.name) if one.name else to
        if not name or (not one.name and parents and parents[-1].path == name):
            # A directory that the image has keeps its own mode and owner.
            continue
        refuse_mark(name)
        if one.kind == "directory":
            searchable = None if mode is None else mode | (mode & 0o444) >> 2
            kept = one.mode if searchable is None else searchable
            out.write(_header(_info(name, tarfile.DIRTYPE, kept, owner)))
        elif one.kind == "link":
            info = _info(name, tarfile.SYMTYPE, 0o777, owner)
            info.linkname = one.content
            out.write(_header(info))
        else:
            info = _info(name, tarfile.REGTYPE, one.mode if mode is None else mode, owner)
            info.size = one.size
            out.write(_header(info))
            _copy_content(context, [*parts, *(p for p in one.name.split("/") if p)], one, out)
            progress(one.size)
    out.write(bytes(2 * tarfile.BLOCKSIZE))


def _scan(directory: int, entry: str, name: str) -> Iterator[Found]:
    waiting: list[tuple[list[str], str]] = [([entry], name)]
    count = 0
    while waiting:
        path, shown = waiting.pop()
        count += 1
        if count > MAX_FILES:
            raise BuildFailed(
                f"more than {MAX_FILES} files are too many to copy", hint="copy less at once"
            )
        fd = _walk(directory, path[:-1])
        try:
            found = os.stat(path[-1], dir_fd=fd, follow_symlinks=False)
            mode = stat.S_IMODE(found.st_mode) & 0o777
            if stat.S_ISDIR(found.st_mode):
                yield Found(shown, "directory", mode)
                inner = os.open(path[-1], _DIRECTORY, dir_fd=fd)
                try:
                    names = sorted(os.listdir(inner), key=os.fsencode, reverse=True)
                finally:
                    os.close(inner)
                waiting += [([*path, one], f"{shown}/{one}" if shown else one) for one in names]
            elif stat.S_ISLNK(found.st_mode):
                yield Found(shown, "link", 0o777, content=os.readlink(path[-1], dir_fd=fd))
            elif stat.S_ISREG(found.st_mode):
                size, digest = _hashed(fd, path[-1])
                yield Found(shown, "file", mode, size, digest)
            else:
                raise BuildFailed(
                    f"{shown or entry} is not a file, directory or link",
                    hint="remove it, or copy something else",
                )
        finally:
            os.close(fd)


def _descend(context: Path, parts: Sequence[str], source: str) -> int:
    fd = os.open(context, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        inner = _walk(fd, parts)
    except NotADirectoryError as exc:
        raise BuildFailed(
            f"{source} goes through a link or a file",
            hint="name the real path below the recipe's directory",
        ) from exc
    finally:
        os.close(fd)
    return inner


def _walk(directory: int, parts: Sequence[str]) -> int:
    """Return a descriptor of the directory, opened one component at a time without following
    links.
    """
    fd = os.dup(directory)
    for part in parts:
        try:
            inner = os.open(part, _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def _hashed(directory: int, name: str) -> tuple[int, str]:
    told, size = hashlib.sha256(), 0
    with os.fdopen(os.open(name, _FILE, dir_fd=directory), "rb", buffering=0) as file:
        while block := file.read(_CHUNK):
            told.update(block)
            size += len(block)
    return size, told.hexdigest()


def _copy_content(context: Path, parts: Sequence[str], one: Found, out: BinaryIO) -> None:
    fd = _descend(context, parts[:-1], "/".join(parts))
    told, left = hashlib.sha256(), one.size
    try:
        with os.fdopen(os.open(parts[-1], _FILE, dir_fd=fd), "rb", buffering=0) as file:
            while left and (block := file.read(min(left, _CHUNK))):
                told.update(block)
                out.write(block)
                left -= len(block)
    finally:
        os.close(fd)
    # What is cached under the digest of the scan must be that content.
    if left or told.hexdigest() != one.content:
        raise BuildFailed(f"{'/'.join(parts)} changed while it was copied", hint="build again")
    out.write(bytes(-one.size % tarfile.BLOCKSIZE))


def _info(name: str, kind: bytes, mode: int, owner: tuple[int, int]) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, mode, _EPOCH
    info.uid, info.gid = owner
    return info


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
