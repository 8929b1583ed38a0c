"""The ledger as a directory of small JSON files, shared by every process of one data directory.

One file per record, mode 0600, replaced by rename, so a reader sees either the old row or the new
one. Nothing is fsynced: no sandbox survives the machine, so a row lost with the machine describes
nothing. A file that cannot be read is reported by `corrupt` and otherwise treated as missing;
unfinished files of a killed process are removed then too. A full or read-only disk raises
QuotaExceeded or InternalError before anything is created; a process without free descriptors raises
Busy. Files are a few hundred bytes in a directory that the kernel caches, so the calls are made on
the event loop: a thread would cost more than they do.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from sandkasten.disk.atomic_file import remove_partial_files, write_file
from sandkasten.disk.os_errors import translated
from sandkasten.disk.small_file import read_small_file
from sandkasten.errors import (
    SessionNotFound,
)
from sandkasten.model.ids import SandboxId, sandbox_id
from sandkasten.store.ledger_rows import MAX_ROW_BYTES, decode_row, encode_row
from sandkasten.store.named_locks import FileLocks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from sandkasten.model.sandbox.ledger_record import Record

_SUFFIX = ".json"


class DirectoryStore:
    """Implements `ports.Store` below `root`, which is created with mode 0700 if missing."""

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
            # Pointer first: a pointer without a row is harmless, but a row without its pointer
            # would lead to a second sandbox for that key.
            if record.session_key is not None:
                _write(self._key_path(record.session_key), record.id.encode())
            _write(self._row_path(record.id), encode_row(record))

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
        found = (self._read(one) for one in self._ids())
        return sorted((r for r in found if r is not None), key=lambda r: (r.created_at, r.id))

    async def drop(self, sandbox_id: SandboxId, record: Record | None = None) -> None:
        if record is None:
            record = self._read(sandbox_id)
        with translated(f"forget sandbox {sandbox_id}"):
            self._row_path(sandbox_id).unlink(missing_ok=True)
            if record is not None and record.session_key is not None:
                path = self._key_path(record.session_key)
                if read_small_file(path, MAX_ROW_BYTES) == sandbox_id.encode():
                    path.unlink(missing_ok=True)

    async def corrupt(self) -> Sequence[SandboxId]:
        with translated("clear the ledger"):
            for directory in (self._rows, self._keys):
                remove_partial_files(directory)
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
            record = decode_row(read_small_file(self._row_path(the_id), MAX_ROW_BYTES) or b"")
        except (OSError, ValueError):
            return None
        return record if record.id == the_id else None

    def _row_path(self, the_id: SandboxId) -> Path:
        return self._rows / (the_id + _SUFFIX)

    def _key_path(self, session_key: str) -> Path:
        return self._keys / hashlib.sha256(session_key.encode("utf-8", "surrogatepass")).hexdigest()


def _write(path: Path, data: bytes) -> None:
    write_file(path, data, durable=False)
