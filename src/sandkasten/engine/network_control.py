"""The network of a live sandbox: its rules, its counters, and its log of attempts.

A sandbox that was created without a network cannot get one later (UnsupportedByBackend). One that
was created with a network can be closed and opened again.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.ids import sandbox_id
from sandkasten.model.sandbox.network_policy import (
    NetworkAttempt,
    NetworkStatus,
    attempt,
    created_without_network,
    not_public,
    suggested,
)
from sandkasten.ports import Networked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sandkasten.engine.handles import Handle, Handles
    from sandkasten.model.sandbox.network_policy import NetworkCounts, NetworkPolicy

_LOOK_EVERY_S: Final = 0.2


class NetworkControl:
    def __init__(self, handles: Handles, reachable: Sequence[str]) -> None:
        self._handles = handles
        self._reachable = reachable

    async def status(self, text: str) -> NetworkStatus:
        """Return rules and counters; zeros for a sandbox without a network."""
        handle = await self._handles.get(sandbox_id(text))
        if not isinstance(handle.cell, Networked):
            return NetworkStatus()
        try:
            counts = await handle.cell.network_counts()
        except UnsupportedByBackend:
            return NetworkStatus()
        tried = await self.log(text)
        return NetworkStatus(
            handle.record.network,
            **asdict(counts),
            suggested=suggested(tried, self._reachable),
            not_public=not_public(tried, self._reachable),
        )

    async def totals(self) -> NetworkCounts:
        """Return the counters of all sandboxes since this engine began."""
        return await self._handles.traffic()

    async def log(self, text: str, *, since_seq: int = 0) -> list[NetworkAttempt]:
        """Return the attempts after a sequence number; none for a sandbox without a network."""
        handle = await self._handles.get(sandbox_id(text))
        if not isinstance(handle.cell, Networked):
            return []
        return [attempt(one) for one in await handle.cell.network_records(since_seq)]

    async def follow(self, text: str, *, since_seq: int = 0) -> AsyncIterator[NetworkAttempt]:
        """Yield attempts as they happen, until the sandbox ends."""
        while True:
            for one in await self.log(text, since_seq=since_seq):
                since_seq = one.seq
                yield one
            await asyncio.sleep(_LOOK_EVERY_S)

    async def change(self, handle: Handle, policy: NetworkPolicy) -> None:
        if handle.record.network == policy.public():
            return
        if not isinstance(handle.cell, Networked):
            raise created_without_network(handle.record.id)
        await handle.cell.change_network(policy)
