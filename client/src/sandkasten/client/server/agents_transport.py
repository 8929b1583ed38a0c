"""Opens what runs agents (`ports.Agents`).

A daemon runs them and continues when the client leaves; without one this process does, and what
still runs is cancelled, with its sandboxes, when it is closed. Only classes of `errors` leave an
implementation.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sandkasten.client.server.daemon_or_embedded import find_server, no_tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.client.server.daemon_or_embedded import ServerAddress
    from sandkasten.ports import Agents


@asynccontextmanager
async def agents_of(place: ServerAddress) -> AsyncIterator[Agents]:
    """Open the agents of a daemon, or of this process if there is none."""
    place = await asyncio.to_thread(find_server, place)
    if place.url is None:
        no_tenant(place)
        from sandkasten.client.server.embedded import open_agents

        async with open_agents(place) as opened:
            yield opened
        return
    from sandkasten.client.http.agents import HttpAgents
    from sandkasten.client.http.connection import Connection

    connection = Connection(place.url, place.api_key, place.tenant)
    try:
        yield HttpAgents(connection)
    finally:
        await connection.aclose()
