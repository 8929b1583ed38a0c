"""The ledger as a directory of small JSON files, shared by every process of one data directory.

One file a record, mode 0600, replaced by rename, so a reader sees the old row or the new.
Nothing is fsynced: no sandbox outlives the machine, so a row lost with it describes nothing.
A file that cannot be read is reported by `corrupt` and answers like a missing one; what a
process that was killed had begun to write goes then too. A disk
that is full or read-only raises QuotaExceeded or InternalError, before anything was made; a
process that has no descriptors left, Busy.

Files are a few hundred bytes in a directory the kernel caches: the calls are made on the
event loop, because handing them to a thread costs more than they do.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import time
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import TYPE_CHECKING

from sandkasten.errors import (
    Busy,
    InternalError,
    QuotaExceeded,
    SandkastenError,
    SessionNotFound,
)
from sandkasten.model.ids import SandboxId, sandbox_id
from sandkasten.store.ledger_rows import MAX_ROW_BYTES, decode_row, encode_row
from sandkasten.store.named_locks import FileLocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sandkasten.model.sandbox.ledger_record import Record

_SUFFIX = ".json"
# `.<name>.<namespace of pids>-<pid>-<anything>`: who is writing it.
_HALF = re.compile(r"\..+\.(\d+)-(\d+)-[0-9a-f]{8}\Z")
# Of a writer that we cannot see, in another namespace: a rename follows a write at once.
_HALF_FOR_S = 60.0
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_MORE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class DirectoryStore:
    """Implements `ports.Store` below `root`, which is made with mode 0700 when missing."""

    def __init__(self, root: Path) -> None:
        self._rows = root / "rows"
        self._keys = root / "keys"
        locks = root / "locks"
        with translated("prepare the ledger"):
            for directory in (root, self._rows, self._keys, locks):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._locks = FileLocks(locks)

    async def put(self, record: Record) -> None:
        with translated(f"record sandbox {record.id}"):
            # Pointer first: one that leads to no row is harmless, a row that its key does
            # not find is a second sandbox for that key.
            if record.session_key is not None:
                _replace(self._key_path(record.session_key), record.id.encode())
            _replace(self._row_path(record.id), encode_row(record))

    async def get(self, sandbox_id: SandboxId) -> Record | None:
        return self._read(sandbox_id)

    async def find_key(self, session_key: str) -> Record | None:
        try:
            target = sandbox_id(_read_small(self._key_path(session_key)).decode("ascii"))
        except (OSError, ValueError, SessionNotFound):
            return None
        record = self._read(target)
        return record if record is not None and record.session_key == session_key else None

    async def list(self) -> Sequence[Record]:
        found = (self._read(one) for one in self._ids())
        return sorted((r for r in found if r is not None), key=lambda r: (r.created_at, r.id))

    async def drop(self, sandbox_id: SandboxId, record: Record | None = None) -> None:
        if record is None:
            record = self._read(sandbox_id)
        with translated(f"forget sandbox {sandbox_id}"):
            self._row_path(sandbox_id).unlink(missing_ok=True)
            if record is not None and record.session_key is not None:
                path = self._key_path(record.session_key)
                try:
                    if _read_small(path) == sandbox_id.encode():
                        path.unlink(missing_ok=True)
                except FileNotFoundError:
                    return

    async def corrupt(self) -> Sequence[SandboxId]:
        with translated("clear the ledger"):
            for directory in (self._rows, self._keys):
                _clear(directory)
        return [
            one for one in self._ids() if self._read(one) is None and self._row_path(one).exists()
        ]

    def lock(self, name: str, *, wait_s: float = 30.0) -> AbstractAsyncContextManager[None]:
        return self._locks.hold(name, wait_s)

    def _ids(self) -> Sequence[SandboxId]:
        ids: list[SandboxId] = []
        with translated("read the ledger"):
            for name in os.listdir(self._rows):
                stem, suffix = os.path.splitext(name)
                if suffix == _SUFFIX:
                    try:
                        ids.append(sandbox_id(stem))
                    except SessionNotFound:
                        continue
        return ids

    def _read(self, the_id: SandboxId) -> Record | None:
        try:
            record = decode_row(_read_small(self._row_path(the_id)))
        except (OSError, ValueError):
            return None
        return record if record.id == the_id else None

    def _row_path(self, the_id: SandboxId) -> Path:
        return self._rows / (the_id + _SUFFIX)

    def _key_path(self, session_key: str) -> Path:
        return self._keys / hashlib.sha256(session_key.encode("utf-8", "surrogatepass")).hexdigest()


def _read_small(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_ROW_BYTES + 1)


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{_who()}-{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _who() -> str:
    return f"{_namespace()}-{os.getpid()}"


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino if os.path.exists("/proc/self/ns/pid") else 0


def _clear(directory: Path) -> None:
    """Of what is half-written, that which nobody goes on with."""
    for name in os.listdir(directory):
        half = _HALF.match(name)
        if half is None:
            continue
        path = directory / name
        with suppress(FileNotFoundError):
            dead = int(half[1]) == _namespace() and not _lives(int(half[2]))
            if dead or time.time() - path.stat().st_mtime > _HALF_FOR_S:
                path.unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def translated(attempt: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise _trouble(attempt, exc) from exc


def _trouble(attempt: str, exc: OSError) -> SandkastenError:
    reason = exc.strerror or type(exc).__name__
    if exc.errno in _NO_ROOM:
        return QuotaExceeded(
            f"could not {attempt}: {reason}", hint="free space in the data directory and try again"
        )
    if exc.errno in _NO_MORE:
        return Busy(f"could not {attempt}: {reason}", hint="try again")
    return InternalError(
        f"could not {attempt}: {reason}",
        hint="check that the data directory exists and belongs to this user",
    )
