"""Files that are replaced as a whole: a reader sees the old content or the new, never a part.

Raises OSError. A process that is killed while it writes leaves a partial file behind, whose name
names the process that wrote it; `remove_partial_files` removes those of dead processes.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandkasten.disk.process_identity import start_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedRandom

# `.<pid namespace>-<pid>-<random>.part`; independent of the target's name, which may be of any
# length.
_PARTIAL: Final = re.compile(r"\.(\d+)-(\d+)-[0-9a-f]{8}\.part\Z")
# A writer in another pid namespace cannot be looked up; a rename follows a write at once.
_PARTIAL_FOR_S: Final = 60.0


def write_file(path: Path | str, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace the file. With `durable` the new content survives a power cut from then on."""
    if durable:
        with replacing(Path(path), mode=mode) as file:
            file.write(data)
        return
    # Without the context managers, because every create makes several such files.
    temporary = _partial_name(os.path.dirname(path))
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def create_file(path: Path, data: bytes) -> bool:
    """Create the file, durably; return False if it exists already, also on a full disk."""
    if os.path.lexists(path):
        return False
    with _partial_path(path.parent) as temporary:
        with _new_file(temporary, 0o600) as file:
            file.write(data)
            _flush(file, durable=True)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    sync_directory(path.parent)
    return True


@contextmanager
def replacing(path: Path, *, mode: int = 0o600, durable: bool = True) -> Iterator[BufferedRandom]:
    """Yield a file that takes the place of `path` when the block ends without an exception."""
    with _partial_path(path.parent) as temporary:
        with _new_file(temporary, mode) as file:
            yield file
            _flush(file, durable=durable)
        temporary.replace(path)
    if durable:
        sync_directory(path.parent)


@contextmanager
def overwriting(path: Path, *, mode: int = 0o600) -> Iterator[BufferedRandom]:
    """Yield a file whose content goes to `path` when the block ends without an exception.

    A symbolic link is followed. A regular file is replaced. Anything else (a device, a FIFO) stays
    what it is and receives the content, which may block. IsADirectoryError for a directory.
    """
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        kind = stat.S_IFREG
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind == stat.S_IFREG:
        with replacing(Path(os.path.realpath(path)), mode=mode, durable=False) as file:
            yield file
        return
    # Collected first: the caller may seek, and a failure must not leave half of the content there.
    with tempfile.TemporaryFile() as collected:
        yield collected
        collected.seek(0)
        # Without O_CREAT, which fs.protected_fifos refuses in shared directories.
        with open(os.open(path, os.O_WRONLY | os.O_NOCTTY), "wb") as target:
            shutil.copyfileobj(collected, target)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_partial_files(directory: Path) -> None:
    """Remove what dead processes left half written."""
    for name in os.listdir(directory):
        partial = _PARTIAL.match(name)
        if partial is None:
            continue
        path = directory / name
        with suppress(FileNotFoundError):
            dead = int(partial[1]) == _pid_namespace() and start_time(int(partial[2])) is None
            if dead or time.time() - path.stat().st_mtime > _PARTIAL_FOR_S:
                path.unlink()


def _partial_name(directory: Path | str) -> str:
    name = f".{_pid_namespace()}-{os.getpid()}-{secrets.token_hex(4)}.part"
    return os.path.join(directory, name)


@contextmanager
def _partial_path(directory: Path) -> Iterator[Path]:
    path = Path(_partial_name(directory))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _new_file(path: Path, mode: int) -> BufferedRandom:
    return open(path, "x+b", opener=lambda name, flags: os.open(name, flags, mode))


def _flush(file: BufferedRandom, *, durable: bool) -> None:
    file.flush()
    if durable:
        os.fsync(file.fileno())


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
