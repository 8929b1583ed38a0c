"""Removal of a directory that programs of a backend may still write to while they end."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from sandkasten_contract.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

_RETRY_S = 0.1


def removed_soon(path: Path) -> None:
    """Remove a directory. Raise OSError if something still writes to it after a while."""
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
