"""How long a test waits for an expected event: a busy machine is not a failure."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Waiting costs nothing where it does happen. Less than pytest's own limit for a test.
PATIENCE_S = 40.0
# What comes later than this came because something else ended, and not because it should.
FAR_TOO_LATE_S = 60.0
_RETRY_S = 0.1


def removed_soon(path: Path) -> None:
    """Remove a directory that ending programs may still write to.

    Raise OSError if something still writes to it after a while.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            shutil.rmtree(path)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)
        else:
            return
