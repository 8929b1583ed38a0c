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
from sandkasten.lazy_dataclass import dataclass
from sandkasten_build.builder.dockerignore import NOTHING, DockerIgnore, glob
from sandkasten_runtime.images.layers.overlay import refuse_mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from sandkasten_build.builder.build_plan import Copy
    from sandkasten_runtime.images.layers.overlay import Parent

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
    picks: list[Picked] = []
    unmatched: list[str] = []
    for source in step.sources:
        names = [source]
        if step.patterns and any(character in source for character in "*?["):
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
        picks += [pick(context, name, step.ignore) for name in names]
    # Beside another source, a pattern may match nothing, as in Docker.
    if unmatched and not picks:
        raise BuildFailed(
            f"no file matches {' or '.join(unmatched)}", hint=f"check the files in {context}"
        )
    if not step.archives:
        for picked in picks:
            _refuse_archive(context, picked)
    return picks


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
    for entry in entries:
        line = [entry.name, entry.kind, f"{entry.mode:o}", entry.content]
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
    included: list[Found] = []
    needed: set[str] = set()
    for entry, out in reversed(list(scanned)):
        if not out or entry.name in needed:
            included.append(entry)
            if entry.name:
                needed.add(entry.name.rpartition("/")[0])
    return tuple(reversed(included))


def _matching(context: Path, parts: Sequence[str], ignore: DockerIgnore) -> list[str]:
    """Return the paths that a pattern matches, sorted, through directories only."""
    paths = [""]
    for part in parts:
        try:
            pattern = glob(part)
        except (ValueError, re.error) as exc:
            raise BuildFailed(f"{part} is not a valid pattern", hint="use *, ?, [a-z]") from exc
        deeper: list[str] = []
        for base in paths:
            try:
                fd = _descend(context, [piece for piece in base.split("/") if piece], base)
            except BuildFailed:
                continue
            try:
                names = sorted(name for name in os.listdir(fd) if pattern.match(name))
            finally:
                os.close(fd)
            deeper += [f"{base}/{name}" if base else name for name in names]
        paths = deeper
    return [path for path in paths if not ignore.excludes(path) or ignore.has_exceptions]


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
    for placed in copies:
        for parent in placed.parents:
            if parent.path not in written:
                written.add(parent.path)
                info = _info(parent.path, tarfile.DIRTYPE, parent.mode, (parent.uid, parent.gid))
                out.write(_header(info))
        _write_copy(context, placed.picked, placed.parents, placed.to, out, mode=mode, owner=owner)
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
    for entry in picked.entries:
        name = posixpath.join(to, entry.name) if entry.name else to
        if not name or (not entry.name and parents and parents[-1].path == name):
            # A directory that the image has keeps its own mode and owner.
            continue
        refuse_mark(name)
        if entry.kind == "directory":
            searchable = None if mode is None else mode | (mode & 0o444) >> 2
            entry_mode = entry.mode if searchable is None else searchable
            out.write(_header(_info(name, tarfile.DIRTYPE, entry_mode, owner)))
        elif entry.kind == "link":
            info = _info(name, tarfile.SYMTYPE, 0o777, owner)
            info.linkname = entry.content
            out.write(_header(info))
        else:
            info = _info(name, tarfile.REGTYPE, entry.mode if mode is None else mode, owner)
            info.size = entry.size
            out.write(_header(info))
            _copy_content(context, [*parts, *(p for p in entry.name.split("/") if p)], entry, out)


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
            status = os.stat(path[-1], dir_fd=fd, follow_symlinks=False)
            mode = stat.S_IMODE(status.st_mode) & 0o777
            if stat.S_ISDIR(status.st_mode):
                yield Found(shown, "directory", mode), out
                inner = os.open(path[-1], _DIRECTORY, dir_fd=fd)
                try:
                    names = sorted(os.listdir(inner), key=os.fsencode, reverse=True)
                finally:
                    os.close(inner)
                waiting += [
                    ([*path, child], f"{shown}/{child}" if shown else child) for child in names
                ]
            elif out:
                continue
            elif stat.S_ISLNK(status.st_mode):
                yield Found(shown, "link", 0o777, content=os.readlink(path[-1], dir_fd=fd)), False
            elif stat.S_ISREG(status.st_mode):
                total += status.st_size
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


def _copy_content(context: Path, parts: Sequence[str], entry: Found, out: BinaryIO) -> None:
    fd = _descend(context, parts[:-1], "/".join(parts))
    digest, remaining = hashlib.sha256(), entry.size
    try:
        with os.fdopen(os.open(parts[-1], _FILE, dir_fd=fd), "rb", buffering=0) as file:
            while remaining and (block := file.read(min(remaining, _CHUNK))):
                digest.update(block)
                out.write(block)
                remaining -= len(block)
    finally:
        os.close(fd)
    # What is cached under the digest of the scan must be that content.
    if remaining or digest.hexdigest() != entry.content:
        raise BuildFailed(f"{'/'.join(parts)} changed while it was copied", hint="build again")
    out.write(bytes(-entry.size % tarfile.BLOCKSIZE))


def _info(name: str, kind: bytes, mode: int, owner: tuple[int, int]) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, mode, _EPOCH
    info.uid, info.gid = owner
    return info


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
