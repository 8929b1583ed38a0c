"""One meaning for each errno, whichever room meets it."""

from __future__ import annotations

import errno

import pytest

from sandkasten.disk.os_errors import translated
from sandkasten.errors import BackendUnavailable, Busy, InternalError, QuotaExceeded


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, QuotaExceeded),
        (errno.EDQUOT, QuotaExceeded),
        (errno.EMFILE, Busy),
        (errno.ENFILE, Busy),
        (errno.ENOMEM, Busy),
        (errno.EACCES, InternalError),
        (errno.EROFS, InternalError),
    ],
)
def test_errno_becomes_one_of_our_errors(number, kind):
    with pytest.raises(kind, match="could not write: ") as raised, translated("write"):
        raise OSError(number, "reason")
    assert type(raised.value) is kind
    assert raised.value.hint
    assert isinstance(raised.value.__cause__, OSError)


def test_full_disk_is_named_in_the_details():
    with pytest.raises(QuotaExceeded) as raised, translated("write"):
        raise OSError(errno.ENOSPC, "reason")
    assert raised.value.details == {"quota": "disk"}


def test_caller_chooses_the_error_of_everything_else():
    with pytest.raises(BackendUnavailable), translated("mount", BackendUnavailable):
        raise OSError(errno.EACCES, "reason")
    with pytest.raises(Busy), translated("mount", BackendUnavailable):
        raise OSError(errno.EMFILE, "reason")
