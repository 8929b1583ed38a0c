"""Small files and whole trees on disk: written by rename, read with a bound, removed for certain.

Knows nothing of images. Trouble with the disk leaves as QuotaExceeded (no room) or InternalError,
through `translated`.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InternalError, QuotaExceeded, SandkastenError
from sandkasten.linux.storage.tree_removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_SMALL_BYTES: Final = 16 * 1024 * 1024
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def translated(attempt: str) -> Iterator[None]:
    """An OSError of the block, said as an error of ours."""
    try:
        yield
    except OSError as exc:
        raise trouble(attempt, exc) from exc


def trouble(attempt: str, exc: OSError) -> SandkastenError:
    reason = exc.strerror or type(exc).__name__
    if exc.errno in _NO_ROOM:
        return QuotaExceeded(
            f"could not {attempt}: {reason}",
            hint="free space in the data directory (sandkasten image gc) and try again",
        )
    return InternalError(
        f"could not {attempt}: {reason}",
        hint="check that the data directory exists and belongs to this user",
    )


def write_whole(path: Path, data: bytes) -> None:
    """Readers see the old file or the new one, also after the machine stopped in between."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_small(path: Path) -> bytes | None:
    """The file, or None when there is none; what is larger than any of ours is cut."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_SMALL_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None when it is not there or is no object."""
    data = read_small(path)
    if data is None or len(data) > MAX_SMALL_BYTES:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def canonical(value: object) -> bytes:
    """The one way to write a JSON value, so that equal values have equal digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def remove_quietly(root: Path) -> bool:
    """Clean-up: what cannot be removed now is left for the next sweep. Whether it is gone."""
    with suppress(FileNotFoundError):
        try:
            remove_tree(root)
        except FileNotFoundError:
            raise
        except OSError:
            return False
    return True
