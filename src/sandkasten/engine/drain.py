"""What is begun and not done yet, and the moment from which nothing new may begin."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Door:
    def __init__(self) -> None:
        self.closed = False
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def check(self) -> None:
        """BackendUnavailable when nothing new may begin."""
        if self.closed:
            raise BackendUnavailable(
                "the daemon is shutting down and begins nothing new",
                hint="try again in a moment; sandboxes and running commands live on",
            )

    @contextmanager
    def within(self, *, new: bool = True) -> Iterator[None]:
        """For as long as something is made or removed, which a shutdown waits for."""
        if new:
            self.check()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def close(self, deadline_s: float) -> bool:
        """Close it and wait for those inside; whether all of them came out in time."""
        self.closed = True
        try:
            async with asyncio.timeout(deadline_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
