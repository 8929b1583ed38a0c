"""One process at a time at something, by a file that all of them know. Raises OSError."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_LOOK_AGAIN_S = 0.005


@asynccontextmanager
async def turn(path: Path) -> AsyncIterator[None]:
    """Waits until no other process is at it; closing the file, or dying, gives the turn away.

    By trying again and not in a thread: as many waiters as the pool has threads would keep the one
    whose turn it is from getting any.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOOK_AGAIN_S)
        yield
    finally:
        os.close(fd)
