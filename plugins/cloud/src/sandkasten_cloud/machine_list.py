"""Which machines a provider has, asked rarely: providers limit the rate of requests.

The engine looks at every sandbox without a connection every few seconds. All of these looks share
one list. Before a machine that is not on it counts as ended, the provider is asked for it, so an
old list loses no sandbox. The end of a machine may be noticed a few seconds late; a connection to
it fails at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from sandkasten.model.ids import SandboxId
    from sandkasten_cloud.provider import Provider

LIST_S: Final = 5.0
"""How long a list is used."""


class MachineList:
    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._found: dict[SandboxId, str] = {}
        self._found_at: float | None = None
        self._asking = asyncio.Lock()

    async def ids(self) -> Collection[SandboxId]:
        await self._refresh()
        return self._found.keys()

    async def find(self, sandbox_id: SandboxId) -> str | None:
        """Return the machine of a sandbox; None if the provider reports that there is none."""
        await self._refresh()
        return self._found.get(sandbox_id) or await self.look(sandbox_id)

    async def look(self, sandbox_id: SandboxId) -> str | None:
        """Ask the provider now."""
        machine_id = await self._provider.find(sandbox_id)
        if machine_id is None:
            self.drop(sandbox_id)
        else:
            self.add(sandbox_id, machine_id)
        return machine_id

    def add(self, sandbox_id: SandboxId, machine_id: str) -> None:
        self._found[sandbox_id] = machine_id

    def drop(self, sandbox_id: SandboxId) -> None:
        self._found.pop(sandbox_id, None)

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._asking:
            if self._found_at is not None and loop.time() - self._found_at < LIST_S:
                return
            asked_at = loop.time()
            self._found = dict(await self._provider.machines())
            self._found_at = asked_at
