"""MCP over HTTP (`/mcp`), for local clients, and for other machines with the key.

Host, Origin and key of each request are checked as the daemon checks its own. A session's id is 122
random bits. Sandboxes belong to the session that opened them and are destroyed with it, at the
latest when its client has sent nothing for IDLE_S.
"""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import NotFound, SandkastenError
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.api.error_responses import problem
from sandkasten_server.api.request.authentication import Doorkeeper
from sandkasten_server.api.request.large_bodies import LargeBodies
from sandkasten_server.api.request.request_body import (
    ClientLeft,
    parse_object,
    read_asgi_body,
)
from sandkasten_server.api.request.request_guard import check_origin, plain_headers
from sandkasten_server.daemon.http.listeners import listening_on_network, network_address
from sandkasten_server.daemon.settings.http_settings import require_key
from sandkasten_tools.mcp.mcp_sessions import IDLE_S, mcp_sessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from sandkasten_server.api.http_limits import HttpLimits
    from sandkasten_server.daemon.http.listeners import AsgiApp
    from sandkasten_server.daemon.settings.http_settings import HttpSettings
    from sandkasten_tools.adapter_protocols import ToolCaller, ToolInfo

    Message = dict[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

PATH: Final = "/mcp"


@asynccontextmanager
async def mcp_over_http(
    tools: Sequence[ToolInfo],
    open_caller: Callable[[], ToolCaller],
    rules: HttpSettings,
    *,
    version: str = "",
    idle_s: float = IDLE_S,
) -> AsyncIterator[str]:
    """Serve until the block ends and yield the URL. No session is left afterwards."""
    require_key(rules)
    keeper = Doorkeeper(
        clock=SystemClock(),
        api_key=rules.api_key,
        open_loopback=rules.api_key is None and rules.loopback,
    )
    # First: the task group of the sessions would wrap the error of an address in use.
    with network_address(rules) as address:
        async with (
            mcp_sessions(
                tools,
                open_caller,
                version=version,
                idle_s=idle_s,
                max_body_bytes=rules.limits.max_json_bytes,
            ) as sessions,
            listening_on_network(
                _GuardedApp(sessions, keeper, rules.limits), address, rules, rules.limits
            ) as listening,
        ):
            yield listening.url + PATH


class _GuardedApp:
    """An ASGI application that checks each request before the library sees it."""

    def __init__(self, sessions: AsgiApp, keeper: Doorkeeper, rules: HttpLimits) -> None:
        self._sessions = sessions
        self._keeper = keeper
        self._rules = rules
        self._bodies = LargeBodies()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # Closing before the handshake refuses it.
            await send({"type": "websocket.close", "code": 1008})
            return
        response = _Response(send)
        try:
            headers = plain_headers(scope["headers"])
            check_origin(headers, self._rules, scope)
            self._keeper.admit(headers, local=False)
            if scope["path"].rstrip("/") != PATH:
                raise NotFound("unknown path", hint=f"the MCP endpoint is {PATH}")
            await self._sessions(scope, await self._checked(scope, receive), response)
        except ClientLeft:
            return
        except SandkastenError as exc:
            if response.begun:
                raise
            refusal: AsgiApp = problem(exc, "req_" + secrets.token_hex(8))
            await refusal(scope, receive, send)

    async def _checked(self, scope: Message, receive: Receive) -> Receive:
        """Read the body within the limits of the daemon's own routes; return what repeats it."""
        async with AsyncExitStack() as stack:

            async def large() -> None:
                await stack.enter_async_context(self._bodies.receiving(""))

            raw = await read_asgi_body(
                scope, receive, self._rules.max_json_bytes, self._rules.body_timeout_s, large
            )
            if raw:
                # The library's parser takes the last one of duplicate keys, and any number of
                # values.
                await self._bodies.parse("", lambda: parse_object(raw))
        sent = False

        async def repeat() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": raw, "more_body": False}

        return repeat


class _Response:
    """Records whether the response has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Any) -> None:
        self.begun = True
        # The library learns that a client has left from `receive`, and logs an error of `send`.
        with suppress(ClientLeft):
            await self._send(message)
