"""MCP over HTTP (`/mcp`), for clients on this machine, and for others that have the key.

Each request is looked at as the daemon looks at its own: where it says it goes and comes from, and
who asks. A session's id is 122 random bits and tells nothing about others; sandboxes belong to the
session that opened them and go with it, at the latest when its client has been silent for long.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from sandkasten.api.http_limits import HttpLimits
from sandkasten.api.problems import problem
from sandkasten.api.request.authentication import Doorkeeper
from sandkasten.api.request.request_guard import check_origin, plain_headers
from sandkasten.daemon.http.listeners import listening_abroad
from sandkasten.daemon.settings.http_settings import require_key
from sandkasten.engine.clock import SystemClock
from sandkasten.errors import InvalidRequest, NotFound, SandkastenError
from sandkasten.mcp.mcp_sessions import mcp_sessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from sandkasten.agents.tools.adapter_protocols import ToolCaller, ToolInfo
    from sandkasten.daemon.http.listeners import AsgiApp
    from sandkasten.daemon.settings.http_settings import HttpSettings

    Message = dict[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

PATH: Final = "/mcp"
# What a sandbox may rest by default; a client that vanished cannot be told from one that thinks.
IDLE_S: Final = 1800.0


@asynccontextmanager
async def mcp_over_http(
    tools: Sequence[ToolInfo],
    open_caller: Callable[[], ToolCaller],
    rules: HttpSettings,
    *,
    version: str = "",
    idle_s: float = IDLE_S,
) -> AsyncIterator[str]:
    """Serves until the block ends; gives the address. No session is left then."""
    require_key(rules)
    guard = HttpLimits(
        allowed_hosts=rules.allowed_hosts,
        allowed_origins=rules.allowed_origins,
        max_json_bytes=rules.max_json_bytes,
        body_timeout_s=rules.body_timeout_s,
    )
    keeper = Doorkeeper(
        clock=SystemClock(),
        api_key=rules.api_key,
        open_loopback=rules.api_key is None and rules.loopback,
    )
    async with (
        mcp_sessions(
            tools, open_caller, version=version, idle_s=idle_s, max_body_bytes=rules.max_json_bytes
        ) as sessions,
        listening_abroad(_Door(sessions, keeper, guard), rules, guard) as there,
    ):
        yield there.url + PATH


class _Door:
    """An ASGI application in front of the library's."""

    def __init__(self, sessions: AsgiApp, keeper: Doorkeeper, rules: HttpLimits) -> None:
        self._sessions = sessions
        self._keeper = keeper
        self._rules = rules

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # Closed before it is open: refused.
            await send({"type": "websocket.close", "code": 1008})
            return
        answering = _Answering(send)
        try:
            headers = plain_headers(scope["headers"])
            check_origin(headers, self._rules, scope)
            self._keeper.admit(headers, local=False)
            if scope["path"].rstrip("/") != PATH:
                raise NotFound("there is nothing here", hint=f"the tools are at {PATH}")
            await self._sessions(scope, self._hasty(receive), answering)
        except SandkastenError as exc:
            if answering.begun:
                raise
            refusal: AsgiApp = problem(exc, "req_" + secrets.token_hex(8))
            await refusal(scope, receive, send)

    def _hasty(self, receive: Receive) -> Receive:
        """A body comes without long pauses, or it is refused."""
        whole = False

        async def take() -> Message:
            nonlocal whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout(self._rules.body_timeout_s):
                    message = await receive()
            except TimeoutError as exc:
                raise InvalidRequest(
                    f"the body paused for {self._rules.body_timeout_s:g} s",
                    hint="send it without pauses",
                    http_status=408,
                ) from exc
            whole = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        return take


class _Answering:
    """Knows whether an answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Any) -> None:
        self.begun = True
        await self._send(message)
