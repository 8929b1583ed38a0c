"""The routes of agents, workflows and runs, as a plugin of the daemon."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from sandkasten_server.api.route_plugins import OpenedRoutes, RouteContext, RoutePlugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sandkasten_server.api.route import Route


def _routes() -> Sequence[Route]:
    from sandkasten_agents.routes import runs

    return runs.ROUTES


@asynccontextmanager
async def _open(context: RouteContext) -> AsyncIterator[OpenedRoutes]:
    from sandkasten_agents.agent_assembly import agent_service
    from sandkasten_agents.lazy_agents import LazyAgents, any_runs

    agents = LazyAgents(
        lambda: agent_service(
            context.settings,
            context.engine,
            context.files,
            recovers=True,
            events=context.events,
            records=context.records,
        ),
        lambda: any_runs(context.data_dir, context.records),
    )
    async with agents:
        yield OpenedRoutes(services={LazyAgents: agents}, work=agents)


PLUGIN: Final = RoutePlugin("agents", routes=_routes, open=_open)
