"""The ledger as a directory of small JSON files, shared by every process of one data directory.

One file per record, mode 0600, made by rename, so a reader sees either the old row or the new one.
When a sandbox enters another stage of its life, its row is written under another name (`_STAGES`)
and the old file is removed: if a file that is not on the disk yet is replaced, ext4 writes the new
one to the disk at once, and its removal waits for that. Nothing is fsynced: no sandbox survives the
machine, so a row lost with the machine describes nothing. A file that cannot be read is reported by
`corrupt` and otherwise treated as missing; unfinished files of a killed process are removed then
too. A full or read-only disk raises QuotaExceeded or InternalError before
anything is created; a process without free descriptors raises Busy. Files are a few hundred bytes
in a directory that the kernel caches, so the calls are made on the event loop: a thread would cost
more than they do. `list` reads only what has changed since it was last called (`ledger_index`); a
single row is always read from its file, and decoded unless this process wrote just that.

It also holds the named locks of the data directory.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Final

from sandkasten.disk.atomic_file import remove_partial_files, write_file
from sandkasten.disk.file_lock import release_byte, try_lock_byte
from sandkasten.disk.os_errors import translated
from sandkasten.disk.small_file import read_small_file
from sandkasten.errors import (
    BackendUnavailable,
    SessionNotFound,
)
from sandkasten.model.ids import SandboxId, sandbox_id
from sandkasten.model.sandbox.lifecycle import State
from sandkasten_runtime.store.ledger_index import LedgerIndex
from sandkasten_runtime.store.ledger_rows import MAX_ROW_BYTES, decode_row, encode_row
from sandkasten_runtime.store.lock_queue import LockQueues

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten_runtime.store.lock_queue import LockQueue

# The suffix of a row's file name, in the order in which a sandbox has them. If there are two files,
# the later one is valid: the process that wrote it died before it removed the other.
_CREATING, _SPARE, _USED, _DESTROYING = ".creating", ".spare", ".json", ".destroying"
_STAGES = (_CREATING, _SPARE, _USED, _DESTROYING)
_LOCK_WAITS_S: Final = (0.001, 0.05)


class DirectoryStore:
    """Implements `ports.Store` below `root`, which is created with mode 0700 if missing."""

    def __init__(self, root: Path) -> None:
        self._rows = root / "rows"
        self._keys = root / "keys"
        locks = root / "locks"
        with translated("prepare the ledger"):
            for directory in (root, self._rows, self._keys, locks):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._locks = _NamedLocks(locks / "names")
        self._written: dict[SandboxId, tuple[bytes, Record]] = {}
        """The last row of each sandbox that this process wrote, as it was written."""
        self._index = LedgerIndex(self._rows, _id_of, self._read_named, self._is_there)

    async def put(self, record: Record) -> None:
        with translated(f"record sandbox {record.id}"):
            # Pointer first: a pointer without a row is harmless, but a row without its pointer
            # would lead to a second sandbox for that key.
            if record.session_key is not None:
                _write(self._key_path(record.session_key), record.id.encode())
            stage, data = _stage(record), encode_row(record)
            _write(self._row_path(record.id, stage), data)
            self._written[record.id] = (data, record)
            for earlier in _STAGES[: _STAGES.index(stage)]:
                with suppress(FileNotFoundError):
                    os.unlink(self._row_path(record.id, earlier))

    async def get(self, sandbox_id: SandboxId) -> Record | None:
        return self._read(sandbox_id)

    async def find_key(self, session_key: str) -> Record | None:
        try:
            pointer = read_small_file(self._key_path(session_key), MAX_ROW_BYTES)
            target = sandbox_id((pointer or b"").decode("ascii"))
        except (OSError, ValueError, SessionNotFound):
            return None
        record = self._read(target)
        return record if record is not None and record.session_key == session_key else None

    async def list(self) -> Sequence[Record]:
        with translated("read the ledger"):
            return self._index.records()

    async def drop(self, sandbox_id: SandboxId, record: Record | None = None) -> None:
        if record is None:
            record = self._read(sandbox_id)
        self._written.pop(sandbox_id, None)
        with translated(f"forget sandbox {sandbox_id}"):
            # The latest one last, so that no reader takes an earlier one for valid meanwhile.
            for stage in _STAGES:
                with suppress(FileNotFoundError):
                    os.unlink(self._row_path(sandbox_id, stage))
            if record is not None and record.session_key is not None:
                path = self._key_path(record.session_key)
                if read_small_file(path, MAX_ROW_BYTES) == sandbox_id.encode():
                    path.unlink(missing_ok=True)

    async def corrupt(self) -> Sequence[SandboxId]:
        with translated("clear the ledger"):
            for directory in (self._rows, self._keys):
                remove_partial_files(directory)
        with translated("read the ledger"):
            return self._index.unreadable()

    async def aclose(self) -> None:
        """Stop watching the ledger. It can still be used."""
        self._index.close()

    def lock(self, name: str, *, wait_s: float = 30.0) -> AbstractAsyncContextManager[None]:
        return self._locks.hold(name, wait_s)

    def _is_there(self, the_id: SandboxId) -> bool:
        return any(os.path.lexists(self._row_path(the_id, stage)) for stage in _STAGES)

    def _read_named(self, the_id: SandboxId, name: str | None) -> Record | None:
        row = None if name is None else self._row(the_id, os.path.splitext(name)[1])
        return row or self._read(the_id)

    def _read(self, the_id: SandboxId) -> Record | None:
        # In this order, a row that moves on meanwhile is seen under its old name or its new one.
        rows = [self._row(the_id, stage) for stage in _STAGES]
        record = next((row for row in reversed(rows) if row is not None), None)
        if record is None:
            self._written.pop(the_id, None)
        return record

    def _row(self, the_id: SandboxId, stage: str) -> Record | None:
        try:
            data = read_small_file(self._row_path(the_id, stage), MAX_ROW_BYTES)
            if data is None:
                return None
            written, record = self._written.get(the_id, (None, None))
            if written != data:
                record = decode_row(data)
        except (OSError, ValueError):
            return None
        return record if record is not None and record.id == the_id else None

    def _row_path(self, the_id: SandboxId, stage: str) -> str:
        return f"{self._rows}/{the_id}{stage}"

    def _key_path(self, session_key: str) -> Path:
        return self._keys / hashlib.sha256(session_key.encode("utf-8", "surrogatepass")).hexdigest()


def _stage(record: Record) -> str:
    if record.state is State.CREATING:
        return _CREATING
    if record.state is State.DESTROYING:
        return _DESTROYING
    return _SPARE if record.acquired == "spare" else _USED


def _id_of(name: str) -> SandboxId | None:
    """Return the sandbox whose row can have this file name."""
    stem, suffix = os.path.splitext(name)
    if suffix not in _STAGES:
        return None
    try:
        return sandbox_id(stem)
    except SessionNotFound:
        return None


def _write(path: Path | str, data: bytes) -> None:
    write_file(path, data, durable=False)


class _NamedLocks:
    """Named locks across processes. Each name locks one byte of a file.

    The kernel releases a lock when its holder dies. Waiters of one process queue in order and share
    one descriptor; they poll instead of blocking the event loop. Two names share a byte only if
    62 bits of their digests are equal; they would then exclude each other.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queues = LockQueues(*_LOCK_WAITS_S)

    def hold(self, name: str, wait_s: float) -> AbstractAsyncContextManager[None]:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
        # 62 bits: the byte after the locked one must be a valid offset as well.
        at = int.from_bytes(digest[:8], "big") >> 2
        return _LockHolder(self._path, at, self._queues.of(name), wait_s)


class _LockHolder(AbstractAsyncContextManager[None]):
    """Not a generator: those cannot be started while a loop ends, and an engine that closes
    then still has sandboxes to remove.
    """

    def __init__(self, path: Path, at: int, queue: LockQueue, wait_s: float) -> None:
        self._path = path
        self._at = at
        self._queue = queue
        self._wait_s = wait_s
        self._fd = -1

    async def __aenter__(self) -> None:
        await self._queue.enter(self._wait_s, self._take)

    async def __aexit__(self, *_: object) -> None:
        try:
            release_byte(self._fd, self._at)
        finally:
            self._queue.leave()

    async def _take(self) -> bool:
        try:
            fd = try_lock_byte(self._path, self._at)
        except OSError as exc:
            raise BackendUnavailable(
                f"the ledger cannot be locked: {exc}",
                hint="check that the data directory is there, writable and not full",
            ) from exc
        if fd is None:
            return False
        self._fd = fd
        return True
