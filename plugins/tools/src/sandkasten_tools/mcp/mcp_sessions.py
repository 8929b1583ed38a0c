"""MCP sessions over HTTP, as an ASGI application: one caller per session.

Does not authenticate: `mcp_http` checks Host, Origin and key first. Clients that request a
protocol version without sessions have one caller together (`sandboxes_by_id`).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS

from sandkasten_tools.mcp.mcp_server import mcp_server
from sandkasten_tools.mcp.sandboxes_by_id import SandboxesById, close_caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from mcp.server.connection import Connection

    from sandkasten_tools.adapter_protocols import ToolCaller, ToolInfo

    AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

log = logging.getLogger("sandkasten.mcp")

# The default idle timeout of a sandbox; a client that vanished looks like one that is thinking.
IDLE_S: Final = 1800.0
_CALLER: Final = "sandkasten.caller"
# Far more than one machine has sandboxes for.
_MAX_SESSIONS: Final = 256
# Per idle time: a sandbox without a session stays at most a tenth longer.
_SWEEPS: Final = 10


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
    shared = SandboxesById(tools, open_caller, idle_s=idle_s, most=_MAX_SESSIONS)
    callers = CallerPerSession(open_caller, shared)
    manager = StreamableHTTPSessionManager(
        mcp_server(tools, callers, version=version),
        session_idle_timeout=idle_s,
        max_request_body_size=max_body_bytes,
        max_sessions=_MAX_SESSIONS,
    )
    sweeping = asyncio.create_task(_sweep(shared, idle_s / _SWEEPS))
    try:
        async with manager.run():
            yield manager.asgi_app
    finally:
        sweeping.cancel()
        await callers.aclose()


class CallerPerSession:
    """One caller per session, closed when the session ends: a transport with many clients.

    `shared` is the caller of all clients without a session. Only versions with sessions are
    announced, because a session ends its sandboxes when its client leaves: a client that supports
    both uses them.
    """

    versions: Final = HANDSHAKE_PROTOCOL_VERSIONS

    def __init__(self, open_caller: Callable[[], ToolCaller], shared: ToolCaller) -> None:
        self._open = open_caller
        self._shared = shared
        self._closing: set[asyncio.Task[None]] = set()

    def by_id(self, connection: Connection) -> bool:
        return connection.session_id is None

    def of(self, connection: Connection) -> ToolCaller:
        if connection.session_id is None:
            return self._shared
        caller: ToolCaller | None = connection.state.get(_CALLER)
        if caller is None:
            caller = connection.state[_CALLER] = self._open()
            connection.exit_stack.callback(self._leave, caller)
        return caller

    def _leave(self, caller: ToolCaller) -> None:
        # The library allows five seconds to close a connection; sandboxes may take longer.
        task = asyncio.create_task(close_caller(caller))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Wait until the callers of ended sessions are closed."""
        await self._shared.aclose()
        while self._closing:
            await asyncio.wait(self._closing)


async def _sweep(shared: SandboxesById, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        shared.sweep()
