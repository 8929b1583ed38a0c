"""Track in-flight operations and reject new ones while draining."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Drain:
    def __init__(self) -> None:
        self.closed = False
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def check(self) -> None:
        """Raise BackendUnavailable while draining."""
        if self.closed:
            raise BackendUnavailable(
                "the daemon is shutting down and accepts no new work",
                hint="retry shortly; sandboxes and running commands continue",
            )

    @contextmanager
    def within(self, *, new: bool = True) -> Iterator[None]:
        """Count an operation that creates or removes something; a shutdown waits for it."""
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
        """Start draining and wait; return whether all operations finished in time."""
        self.closed = True
        try:
            async with asyncio.timeout(deadline_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
