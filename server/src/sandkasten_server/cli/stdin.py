"""Standard input, read without blocking the process.

A thread that blocks in read() cannot be cancelled and would keep the process alive after
Ctrl-C; so input is waited for on the event loop.
"""

from __future__ import annotations

import os
import sys

# Neither typing nor asyncio is imported here: every `exec` uses `is_prepared`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator
    from typing import Final

BLOCK: Final = 64 * 1024
STDIN: Final = 0


def is_prepared() -> bool:
    """Return whether stdin is a pipe or a file: not a terminal, /dev/null or closed."""
    if sys.stdin is None:
        return False
    try:
        status = os.fstat(STDIN)
        null = os.stat(os.devnull)
    except OSError:
        return False
    return not os.isatty(STDIN) and (status.st_dev, status.st_ino) != (null.st_dev, null.st_ino)


async def blocks() -> AsyncGenerator[bytes]:
    """Yield blocks of stdin until its end; nothing if it is closed."""
    if sys.stdin is None:
        return
    import asyncio

    loop = asyncio.get_running_loop()
    while data := await _read(loop):
        yield data


async def _read(loop: asyncio.AbstractEventLoop) -> bytes:
    import asyncio

    ready = asyncio.Event()
    try:
        loop.add_reader(STDIN, ready.set)
    except PermissionError:
        # A regular file cannot be polled, and need not be: it is always ready.
        return os.read(STDIN, BLOCK)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(STDIN)
    return os.read(STDIN, BLOCK)
