"""What an OSError of the disk means to a caller: no space, try again, or a broken installation."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sandkasten.errors import Busy, InternalError, QuotaExceeded, SandkastenError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


@contextmanager
def translated(attempt: str, otherwise: type[SandkastenError] = InternalError) -> Iterator[None]:
    """Raise an OSError of the block as one of our errors; ours stay as they are."""
    try:
        yield
    except SandkastenError:
        raise
    except OSError as exc:
        raise disk_error(attempt, exc, otherwise) from exc


def disk_error(
    attempt: str, exc: OSError, otherwise: type[SandkastenError] = InternalError
) -> SandkastenError:
    """Return QuotaExceeded for a full disk, Busy for exhausted descriptors or memory."""
    message = f"could not {attempt}: {exc.strerror or type(exc).__name__}"
    if is_full(exc):
        return no_space(message)
    if is_exhausted(exc):
        return Busy(message, hint="try again")
    return otherwise(
        message, hint="check that the data directory exists, is writable and belongs to this user"
    )


def no_space(message: str) -> QuotaExceeded:
    return QuotaExceeded(
        message,
        hint="free space in the data directory (sandkasten image gc) and try again",
        quota="disk",
    )


def is_full(exc: OSError) -> bool:
    return exc.errno in _NO_SPACE


def is_exhausted(exc: OSError) -> bool:
    """Whether the process or the machine has no descriptors or memory left for the moment."""
    return exc.errno in _EXHAUSTED
