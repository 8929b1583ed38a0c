"""MCP sessions over HTTP, as an ASGI application: one caller per session.

Does not authenticate: `mcp_http` checks Host, Origin and key first. A client that requests a
protocol version without sessions gets the list of versions that have them.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from mcp import MCPError
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import UNSUPPORTED_PROTOCOL_VERSION
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS

from sandkasten.mcp.mcp_server import mcp_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from mcp.server.connection import Connection

    from sandkasten.agents.tools.adapter_protocols import ToolCaller, ToolInfo

    AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

log = logging.getLogger("sandkasten.mcp")

_CALLER: Final = "sandkasten.caller"
# Far more than one machine has sandboxes for.
_MAX_SESSIONS: Final = 256


@asynccontextmanager
async def mcp_sessions(
    tools: Sequence[ToolInfo],
    open_caller: Callable[[], ToolCaller],
    *,
    version: str = "",
    idle_s: float,
    max_body_bytes: int,
) -> AsyncIterator[AsgiApp]:
    """Yield the application. A session ends after `idle_s` without a request, or with the block."""
    callers = CallerPerSession(open_caller)
    manager = StreamableHTTPSessionManager(
        mcp_server(tools, callers, version=version),
        session_idle_timeout=idle_s,
        max_request_body_size=max_body_bytes,
        max_sessions=_MAX_SESSIONS,
    )
    try:
        async with manager.run():
            yield manager.asgi_app
    finally:
        await callers.aclose()


class CallerPerSession:
    """One caller per session, closed when the session ends: a transport with many clients.

    Protocol versions without sessions are refused: a sandbox would end with the request that
    opened it. Clients that support other versions fall back to those.
    """

    versions: Final = HANDSHAKE_PROTOCOL_VERSIONS

    def __init__(self, open_caller: Callable[[], ToolCaller]) -> None:
        self._open = open_caller
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, connection: Connection) -> ToolCaller:
        if connection.session_id is None:
            raise MCPError(
                UNSUPPORTED_PROTOCOL_VERSION,
                "these tools require a session, which this protocol version does not have",
                {"supported": list(self.versions), "requested": connection.protocol_version},
            )
        caller: ToolCaller | None = connection.state.get(_CALLER)
        if caller is None:
            caller = connection.state[_CALLER] = self._open()
            connection.exit_stack.callback(self._leave, caller)
        return caller

    def _leave(self, caller: ToolCaller) -> None:
        # The library allows five seconds to close a connection; sandboxes may take longer.
        task = asyncio.create_task(_close(caller))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Wait until the callers of ended sessions are closed."""
        while self._closing:
            await asyncio.wait(self._closing)


async def _close(caller: ToolCaller) -> None:
    try:
        await caller.aclose()
    except Exception:
        # The reaper removes what is left; the other callers must still be closed.
        log.exception("mcp.unclosed")
