"""The routes of the tools of agents, as a plugin of the daemon."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from sandkasten_server.api.route_plugins import OpenedRoutes, RouteContext, RoutePlugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sandkasten_server.api.route import Route


def _routes() -> Sequence[Route]:
    from sandkasten_tools import tool_routes

    return tool_routes.ROUTES


@asynccontextmanager
async def _open(context: RouteContext) -> AsyncIterator[OpenedRoutes]:
    from sandkasten_tools.lazy_tools import LazyTools
    from sandkasten_tools.tool_settings import ToolSettings

    max_sandboxes = context.settings.of(ToolSettings).max_sandboxes
    tools = LazyTools(context.engine, context.files, max_sandboxes)
    yield OpenedRoutes(services={LazyTools: tools})


PLUGIN: Final = RoutePlugin("tools", routes=_routes, open=_open)
