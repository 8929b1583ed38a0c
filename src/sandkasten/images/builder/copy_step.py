"""Files of the build's directory as a layer: scanned, hashed, and written as a tar.

Nothing outside the directory is read: links are copied as links, and a path that leads through one
is refused. The same content gives the same bytes, whatever the file times are. Raises BuildFailed,
also for OSError of the disk.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
import tarfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final

from sandkasten.errors import BuildFailed
from sandkasten.images.builder.dockerignore import NOTHING, DockerIgnore, glob
from sandkasten.images.layers.overlay import refuse_mark
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from sandkasten.images.builder.recipe import Copy
    from sandkasten.images.layers.overlay import Parent

_CHUNK: Final = 1024 * 1024
MAX_FILES: Final = 100_000
MAX_PATH: Final = 4096
# As much as the disk of a step's sandbox.
MAX_BYTES: Final = 8 << 30
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
    """One source of a copy step: its entries, parents first, and a digest of them all."""

    path: str
    entries: tuple[Found, ...]
    digest: str

    @property
    def is_directory(self) -> bool:
        return self.entries[0].kind == "directory"


@dataclass(frozen=True, slots=True)
class Placed:
    """A picked source with its target path, without a leading slash, and the parent directories."""

    picked: Picked
    parents: Sequence[Parent]
    to: str


def pick_all(context: Path, step: Copy) -> list[Picked]:
    """Scan everything that a step copies. What it ignores is not read."""
    found: list[Picked] = []
    unmatched: list[str] = []
    for source in step.sources:
        names = [source]
        if step.patterns and any(one in source for one in "*?["):
            with _readable(context, source):
                names = _matching(context, source.split("/"), step.ignore)
            if not names and step.stage is not None:
                # The first part is the directory into which the files were gathered.
                wanted = source.partition("/")[2]
                raise BuildFailed(
                    f"no file of the stage or image matches {wanted}",
                    hint="check the pattern; it begins at the root of that image",
                )
            if not names:
                unmatched.append(source)
        found += [pick(context, name, step.ignore) for name in names]
    # Beside another source, a pattern may match nothing, as in Docker.
    if unmatched and not found:
        raise BuildFailed(
            f"no file matches {' or '.join(unmatched)}", hint=f"check the files in {context}"
        )
    if not step.archives:
        for one in found:
            _refuse_archive(context, one)
    return found


def pick(context: Path, source: str, ignore: DockerIgnore = NOTHING) -> Picked:
    """Scan everything at `source` below `context`, once."""
    parts = [part for part in source.split("/") if part not in ("", ".")]
    with _readable(context, source):
        fd = _descend(context, parts[:-1], source)
        try:
            entries = _kept(_scan(fd, parts[-1] if parts else ".", "", parts, ignore))
        finally:
            os.close(fd)
    if not entries:
        raise BuildFailed(
            f"{source} is left out by .dockerignore", hint="change .dockerignore, or copy less"
        )
    digest = hashlib.sha256()
    for one in entries:
        line = [one.name, one.kind, f"{one.mode:o}", one.content]
        digest.update(b"\0".join(os.fsencode(part) for part in line) + b"\0\n")
    return Picked(source, entries, digest.hexdigest())


@contextmanager
def _readable(context: Path, source: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise BuildFailed(
            f"{source} cannot be copied: {exc.strerror}",
            hint=f"it must exist below {context}",
        ) from exc


def _kept(scanned: Iterable[tuple[Found, bool]]) -> tuple[Found, ...]:
    """Return the entries without those left out; a directory stays if something in it does."""
    kept: list[Found] = []
    needed: set[str] = set()
    for one, out in reversed(list(scanned)):
        if not out or one.name in needed:
            kept.append(one)
            if one.name:
                needed.add(one.name.rpartition("/")[0])
    return tuple(reversed(kept))


def _matching(context: Path, parts: Sequence[str], ignore: DockerIgnore) -> list[str]:
    """Return the paths that a pattern matches, sorted, through directories only."""
    found = [""]
    for part in parts:
        try:
            pattern = glob(part)
        except (ValueError, re.error) as exc:
            raise BuildFailed(f"{part} is not a valid pattern", hint="use *, ?, [a-z]") from exc
        deeper: list[str] = []
        for base in found:
            try:
                fd = _descend(context, [one for one in base.split("/") if one], base)
            except BuildFailed:
                continue
            try:
                names = sorted(name for name in os.listdir(fd) if pattern.match(name))
            finally:
                os.close(fd)
            deeper += [f"{base}/{name}" if base else name for name in names]
        found = deeper
    return [one for one in found if not ignore.excludes(one) or ignore.has_exceptions]


def _refuse_archive(context: Path, picked: Picked) -> None:
    if picked.entries[0].kind != "file":
        return
    parts = picked.path.split("/")
    fd = _descend(context, parts[:-1], picked.path)
    try:
        file = os.fdopen(os.open(parts[-1], _FILE, dir_fd=fd), "rb")
    finally:
        os.close(fd)
    with file:
        try:
            tarfile.open(fileobj=file).close()
        except (tarfile.TarError, EOFError, OSError):
            return
    raise BuildFailed(
        f"ADD would unpack the archive {picked.path}, which is not supported",
        hint="use COPY, and unpack it in a RUN",
    )


def write_copies(
    context: Path,
    copies: Sequence[Placed],
    out: BinaryIO,
    *,
    mode: int | None,
    owner: tuple[int, int],
) -> None:
    """Write the tar: the parent directories as in the image, then the copied files."""
    written: set[str] = set()
    for one in copies:
        for parent in one.parents:
            if parent.path not in written:
                written.add(parent.path)
                info = _info(parent.path, tarfile.DIRTYPE, parent.mode, (parent.uid, parent.gid))
                out.write(_header(info))
        _write_copy(context, one.picked, one.parents, one.to, out, mode=mode, owner=owner)
    out.write(bytes(2 * tarfile.BLOCKSIZE))


def _write_copy(
    context: Path,
    picked: Picked,
    parents: Sequence[Parent],
    to: str,
    out: BinaryIO,
    *,
    mode: int | None,
    owner: tuple[int, int],
) -> None:
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


def _scan(
    directory: int, entry: str, name: str, source: Sequence[str], ignore: DockerIgnore
) -> Iterator[tuple[Found, bool]]:
    """Yield each entry, and whether it is left out. Files that are left out are not read."""
    waiting: list[tuple[list[str], str]] = [([entry], name)]
    count = total = 0
    while waiting:
        path, shown = waiting.pop()
        whole = "/".join([*source, *([shown] if shown else [])])
        if len(whole) > MAX_PATH:
            raise BuildFailed(
                f"the path {whole[:80]}… is longer than {MAX_PATH} characters",
                hint="use shorter names or fewer directories",
            )
        out = bool(whole) and ignore.excludes(whole)
        if out and not ignore.has_exceptions:
            continue
        count += 1
        if count > MAX_FILES:
            raise BuildFailed(f"a copy has more than {MAX_FILES} files", hint="copy less at once")
        fd = _walk(directory, path[:-1])
        try:
            found = os.stat(path[-1], dir_fd=fd, follow_symlinks=False)
            mode = stat.S_IMODE(found.st_mode) & 0o777
            if stat.S_ISDIR(found.st_mode):
                yield Found(shown, "directory", mode), out
                inner = os.open(path[-1], _DIRECTORY, dir_fd=fd)
                try:
                    names = sorted(os.listdir(inner), key=os.fsencode, reverse=True)
                finally:
                    os.close(inner)
                waiting += [([*path, one], f"{shown}/{one}" if shown else one) for one in names]
            elif out:
                continue
            elif stat.S_ISLNK(found.st_mode):
                yield Found(shown, "link", 0o777, content=os.readlink(path[-1], dir_fd=fd)), False
            elif stat.S_ISREG(found.st_mode):
                total += found.st_size
                if total > MAX_BYTES:
                    raise BuildFailed(
                        f"a copy has more than {MAX_BYTES} bytes",
                        hint="copy less at once, or leave files out (.dockerignore)",
                    )
                size, digest = _hashed(fd, path[-1])
                yield Found(shown, "file", mode, size, digest), False
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
            hint="name the real path below the directory of the build",
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
    digest, size = hashlib.sha256(), 0
    with os.fdopen(os.open(name, _FILE, dir_fd=directory), "rb", buffering=0) as file:
        while block := file.read(_CHUNK):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _copy_content(context: Path, parts: Sequence[str], one: Found, out: BinaryIO) -> None:
    fd = _descend(context, parts[:-1], "/".join(parts))
    digest, left = hashlib.sha256(), one.size
    try:
        with os.fdopen(os.open(parts[-1], _FILE, dir_fd=fd), "rb", buffering=0) as file:
            while left and (block := file.read(min(left, _CHUNK))):
                digest.update(block)
                out.write(block)
                left -= len(block)
    finally:
        os.close(fd)
    # What is cached under the digest of the scan must be that content.
    if left or digest.hexdigest() != one.content:
        raise BuildFailed(f"{'/'.join(parts)} changed while it was copied", hint="build again")
    out.write(bytes(-one.size % tarfile.BLOCKSIZE))


def _info(name: str, kind: bytes, mode: int, owner: tuple[int, int]) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, mode, _EPOCH
    info.uid, info.gid = owner
    return info


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
