"""Agents in this process, as a plugin (`ports.agent_plugins`)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from sandkasten.ports.agent_plugins import AgentsPlugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.ports import Agents
    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_server.daemon.transient_file_store import FilesBeside


@asynccontextmanager
async def _open(settings: Settings, beside: FilesBeside) -> AsyncIterator[Agents]:
    # In a thread: the first import takes as long as a hundred commands.
    await asyncio.to_thread(_load)
    from sandkasten_agents.agent_assembly import local_agents

    async with local_agents(settings, beside) as agents:
        yield agents


def _load() -> None:
    import sandkasten_agents.agent_assembly  # noqa: F401  (imported to have it loaded)


PLUGIN: Final = AgentsPlugin("agents", _open)
