"""The tools as an MCP server: lists them, calls them, and tells a waiting client that it works.

An answer is structured content and the same as a JSON text; one of a tool that failed is marked as
an error. A call of an unknown tool is an error of the protocol, and so is what nobody foresaw. A
client's cancellation ends the command it waits for. Knows no transport.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    DiscoverResult,
    ListToolsResult,
    PaginatedRequestParams,
    RequestParams,
    TextContent,
    Tool,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from sandkasten.agents.tools.adapter_protocols import schema_of
from sandkasten.agents.tools.tool_answers import failed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from mcp.server.connection import Connection
    from mcp.server.context import ServerRequestContext

    from sandkasten.agents.tools.adapter_protocols import ToolCaller, ToolInfo

log = logging.getLogger("sandkasten.mcp")

# Clients give up on a silent call after 30 to 60 s; several signs fit into that.
PROGRESS_EVERY_S: Final = 5.0
_INSTRUCTIONS: Final = (
    "A Linux sandbox of your own. What you write below /workspace and what your shell remembers "
    "stays until you close it or leave; nothing in it can reach the machine it stands on."
)


class Callers(Protocol):
    """Whose tools a connection uses."""

    @property
    def versions(self) -> Sequence[str]:
        """Of the protocol, those that can be served so."""
        ...

    def of(self, connection: Connection) -> ToolCaller: ...


class OneCaller:
    """For a transport with one client, whatever connections the protocol makes of it."""

    versions: Final = MODERN_PROTOCOL_VERSIONS

    def __init__(self, caller: ToolCaller) -> None:
        self._caller = caller

    def of(self, connection: Connection) -> ToolCaller:
        return self._caller


def mcp_server(
    tools: Sequence[ToolInfo],
    callers: Callers,
    *,
    version: str = "",
    progress_every_s: float = PROGRESS_EVERY_S,
) -> Server[Any]:
    """For one transport; who carries the calls out is `callers`'s to say."""
    listed = [
        Tool(name=one.name, description=one.description, input_schema=schema_of(one))
        for one in tools
    ]
    known = frozenset(one.name for one in listed)

    async def list_tools(
        context: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=listed)

    async def call_tool(
        context: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult:
        if params.name not in known:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name[:100]!r}")
        # The library says to hang per-connection state here, and offers no other way to it.
        caller = callers.of(context.session._connection)
        async with _signs_of_life(context, progress_every_s):
            try:
                answer = await caller.call(params.name, params.arguments or {})
            except Exception as exc:
                log.exception("mcp.unforeseen", extra={"sandkasten": {"tool": params.name}})
                raise MCPError(INTERNAL_ERROR, "the server failed; its log says how") from exc
        return result_of(answer)

    async def discover(
        context: ServerRequestContext[Any], params: RequestParams | None
    ) -> DiscoverResult:
        return DiscoverResult(
            supported_versions=list(callers.versions),
            capabilities=server.get_capabilities(protocol_version=context.protocol_version),
            instructions=_INSTRUCTIONS,
        )

    server: Server[Any] = Server(
        "sandkasten",
        version=version,
        title="Sandkasten",
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.add_request_handler("server/discover", RequestParams, discover)
    return server


def result_of(answer: Mapping[str, Any]) -> CallToolResult:
    """Both ways a client may read it; one that shows text alone shows all of it."""
    body = dict(answer)
    return CallToolResult(
        content=[TextContent(text=json.dumps(body, ensure_ascii=False))],
        structured_content=body,
        is_error=failed(body),
    )


@asynccontextmanager
async def _signs_of_life(context: ServerRequestContext[Any], every_s: float) -> AsyncIterator[None]:
    """Progress for a client that asked for it, while the block lasts; for others nothing."""

    async def tick() -> None:
        count = 0
        while True:
            await asyncio.sleep(every_s)
            count += 1
            await context.session.report_progress(count * every_s, message="still at work")

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
