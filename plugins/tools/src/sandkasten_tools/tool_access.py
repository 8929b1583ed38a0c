"""Entry points of the package: serve the tools over MCP, or open them in this program.

The tools work on a daemon if the place names one, otherwise on an engine in this process. The
libraries behind them are extras and are imported on first use.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sandkasten.client.server.daemon_or_embedded import (
    ServerAddress,
    find_server,
    no_tenant,
    place_of,
)
from sandkasten.client.server.embedded import require_installed, require_linux

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_tools.adapter_protocols import ToolCaller


def serve_mcp(
    place: ServerAddress,
    *,
    mode: Literal["compute", "code", "all"],
    transport: Literal["stdio", "http"],
    listen: str,
    image: str | None,
    runtime: str | None,
    session: str | None,
    backend: str | None,
    announce: Callable[[str], None],
) -> None:
    """Run an MCP server in this process until the client leaves or a signal arrives.

    Over HTTP, `announce` receives one line with the address.
    """
    if place.url is None:
        require_linux()
        no_tenant(place)
    settings = _settings({**place.flags(), "listen": listen})
    with require_installed("the MCP server", "mcp"):
        from sandkasten_tools.mcp.mcp_process import serve
        from sandkasten_tools.tool_provider import ToolOffer
    offer = ToolOffer(mode, image, runtime, session, backend)
    serve(settings, offer, transport, announce, place)


@asynccontextmanager
async def open_tools(
    place: ServerAddress | None = None,
    *,
    mode: Literal["compute", "code", "all"] = "all",
    image: str | None = None,
    runtime: str | None = None,
    session: str | None = None,
    backend: str | None = None,
) -> AsyncIterator[ToolCaller]:
    """Open the tools for this program. Their sandboxes are destroyed when the block ends.

    With a `session` name the sandboxes stay, and the next block that uses the name finds them.
    """
    place = await asyncio.to_thread(find_server, place or place_of())
    if place.url is None:
        require_linux()
        no_tenant(place)
    # In a thread: the first import takes as long as a hundred commands and would block the loop.
    settings = await asyncio.to_thread(_load, place)
    from sandkasten_tools.tool_provider import ToolOffer, provide_tools

    offer = ToolOffer(mode, image, runtime, session, backend)
    async with provide_tools(settings, offer, place) as tools:
        caller = tools.open_caller()
        try:
            yield caller
        finally:
            await caller.aclose()


def _load(place: ServerAddress) -> Settings:
    with require_installed("the toolbox of agents", "tools"):
        import sandkasten_tools.tool_provider  # noqa: F401  (imported to have it loaded)
    return _settings(place.flags())


def _settings(flags: Mapping[str, str]) -> Settings:
    from sandkasten_runtime.assembly.settings.resolver import load

    return load(flags, os.environ, Path.cwd())
