"""What SQLite says went wrong, as our errors. Knows neither rows nor callers."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InternalError, QuotaExceeded, SandkastenError, StoreUnusable

if TYPE_CHECKING:
    from pathlib import Path

# SQLite tells a full disk by its own code only where write(2) said so; a quota or a file that
# could not grow is an I/O error, so then we look how much room there is.
_NO_ROOM_BYTES: Final = 1 << 20
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_HELD: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def ends_the_batch(exc: BaseException) -> bool:
    """Whether it says something of the disk or the file, and not of the one statement."""
    return isinstance(exc, sqlite3.Error) and not isinstance(
        exc, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError
    )


def translated(exc: sqlite3.Error, path: Path) -> SandkastenError:
    primary = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    name = getattr(exc, "sqlite_errorname", type(exc).__name__)
    if primary == sqlite3.SQLITE_FULL or (primary == sqlite3.SQLITE_IOERR and _is_full(path)):
        return QuotaExceeded(
            "the disk of the daemon's database is full, and nothing was written",
            hint="free space on the disk of db_path and retry; no restart is needed",
            quota="disk",
        )
    if primary in _DAMAGED:
        return damaged(path, name)
    if primary in _HELD:
        return held(path)
    return InternalError(
        f"the daemon's database failed ({name})",
        hint="check the disk of db_path, and the kernel log",
    )


def damaged(path: Path, what: str) -> StoreUnusable:
    return StoreUnusable(
        f"the database {path} is damaged: {what}",
        hint="move it away or recover it with sqlite3; without it sandboxes continue, "
        "but keys must be created again",
        reason="damaged",
    )


def held(path: Path) -> StoreUnusable:
    return StoreUnusable(
        f"another process has the database {path} open",
        hint="stop it: only one process may open the database",
        reason="held",
    )


def _is_full(path: Path) -> bool:
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _NO_ROOM_BYTES
