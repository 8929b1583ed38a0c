"""The MCP server: list tools, call them, and report progress to a waiting client.

A result is structured content and the same as JSON text; that of a failed tool is marked as an
error. An unknown tool and an unexpected exception are protocol errors. Cancelling a request ends
its command. Knows no transport.
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

from sandkasten_tools.adapter_protocols import schema_of
from sandkasten_tools.calls.tool_answers import failed
from sandkasten_tools.mcp.sandboxes_by_id import shapes_by_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from mcp.server.connection import Connection
    from mcp.server.context import ServerRequestContext

    from sandkasten_tools.adapter_protocols import ToolCaller, ToolInfo

log = logging.getLogger("sandkasten.mcp")

# Clients time out after 30 to 60 s without progress; several reports fit into that.
PROGRESS_EVERY_S: Final = 5.0
_INSTRUCTIONS: Final = (
    "A Linux sandbox of your own. Files below /workspace and the state of your shell persist until "
    "you close it or disconnect; nothing in it can reach the host machine."
)


class Callers(Protocol):
    """Chooses the caller for a connection."""

    @property
    def versions(self) -> Sequence[str]:
        """The protocol versions that can be served."""
        ...

    def of(self, connection: Connection) -> ToolCaller: ...
    def by_id(self, connection: Connection) -> bool:
        """Return whether the client reaches its sandboxes only by their ids."""
        ...


class OneCaller:
    """One caller for all connections: a transport with one client."""

    versions: Final = MODERN_PROTOCOL_VERSIONS

    def __init__(self, caller: ToolCaller) -> None:
        self._caller = caller

    def of(self, connection: Connection) -> ToolCaller:
        return self._caller

    def by_id(self, connection: Connection) -> bool:
        return False


def mcp_server(
    tools: Sequence[ToolInfo],
    callers: Callers,
    *,
    version: str = "",
    progress_every_s: float = PROGRESS_EVERY_S,
) -> Server[Any]:
    """Return a server for one transport; `callers` executes the calls."""
    listed, listed_by_id = _listed(tools), _listed(shapes_by_id(tools))
    names = frozenset(tool.name for tool in listed)

    async def list_tools(
        context: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        by_id = callers.by_id(context.session._connection)
        return ListToolsResult(tools=listed_by_id if by_id else listed)

    async def call_tool(
        context: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult:
        if params.name not in names:
            raise MCPError(INVALID_PARAMS, f"unknown tool {params.name[:100]!r}")
        # The library keeps per-connection state here and offers no public way to it.
        caller = callers.of(context.session._connection)
        async with _progress(context, progress_every_s):
            try:
                answer = await caller.call(params.name, params.arguments or {})
            except Exception as exc:
                log.exception("mcp.unforeseen", extra={"sandkasten": {"tool": params.name}})
                raise MCPError(INTERNAL_ERROR, "internal error; see the log of the server") from exc
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


def _listed(tools: Sequence[ToolInfo]) -> list[Tool]:
    return [
        Tool(name=tool.name, description=tool.description, input_schema=schema_of(tool))
        for tool in tools
    ]


def result_of(answer: Mapping[str, Any]) -> CallToolResult:
    """Return the result as structured content and, for clients without that, as JSON text."""
    body = dict(answer)
    return CallToolResult(
        content=[TextContent(text=json.dumps(body, ensure_ascii=False))],
        structured_content=body,
        is_error=failed(body),
    )


@asynccontextmanager
async def _progress(context: ServerRequestContext[Any], every_s: float) -> AsyncIterator[None]:
    """Report progress while the block lasts, if the client asked for it."""

    async def tick() -> None:
        count = 0
        while True:
            await asyncio.sleep(every_s)
            count += 1
            await context.session.report_progress(count * every_s, message="still running")

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
