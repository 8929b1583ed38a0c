"""Limit how many large answers of a tenant are in memory at once.

A file of 10 MB is in memory three times while it is sent as JSON, for as long as its client takes
to read it. Any number of them at once could take all memory of the daemon.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# About 200 MB of memory.
AT_ONCE: Final = 4


class LargeAnswers:
    def __init__(self) -> None:
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn. Clients of other tenants never wait for this one's."""
        async with self._of.setdefault(tenant, asyncio.Semaphore(AT_ONCE)):
            yield
