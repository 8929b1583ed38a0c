"""The app: every route of the table behind one door.

For each request, in this order: an id, where it comes from (Host and Origin), who asks, whether
they may, and only then the handler. An error becomes the one body of `problems`; once an answer
has begun nothing is added to it.
"""

from __future__ import annotations

import logging
import re
import secrets
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection, Request
from starlette.routing import Match
from starlette.routing import Route as HttpPath
from starlette.websockets import WebSocket

from sandkasten.api.auth import require
from sandkasten.api.call import Call
from sandkasten.api.guard import check_origin, check_type
from sandkasten.api.problems import problem, unforeseen
from sandkasten.errors import InvalidRequest, NotFound, SandkastenError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Receive, Scope, Send

    from sandkasten.api.routing import Route
    from sandkasten.api.server import Server

log = logging.getLogger("sandkasten.api")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_ALL = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class App:
    """An ASGI application."""

    def __init__(self, server: Server, routes: Sequence[Route]) -> None:
        self.server = server
        self.routes = tuple(routes)
        self._paths: dict[str, list[tuple[Any, Route]]] = {}
        for route in routes:
            path = HttpPath(route.path, _nothing, methods=_ALL)
            self._paths.setdefault(_first(route.path), []).append((path, route))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        websocket = scope["type"] == "websocket"
        connection: HTTPConnection = (
            WebSocket(scope, receive, send) if websocket else Request(scope, receive)
        )
        given = connection.headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else "req_" + secrets.token_hex(8)
        answering = _Answering(send, request_id)
        try:
            call = await self._admitted(connection, scope, request_id, websocket=websocket)
            route: Route = scope["sandkasten.route"]
            response = await route.run(call)
            if response is not None:
                await response(scope, receive, answering)
        except SandkastenError as exc:
            await self._fail(exc, connection, answering, scope, receive)
        except Exception as exc:
            log.exception("request.failed", extra={"request_id": request_id})
            await self._fail(unforeseen(exc), connection, answering, scope, receive)

    async def _admitted(
        self, connection: HTTPConnection, scope: Scope, request_id: str, *, websocket: bool
    ) -> Call:
        local = _is_local(scope)
        if not local:
            check_origin(connection.headers, self.server.rules, scope)
        route = self._find(scope, websocket=websocket)
        if route is None or route.scope is not None:
            # Who may not come in learns nothing of what is there.
            principal = self.server.doorkeeper.admit(connection.headers, local=local)
        else:
            principal = self.server.doorkeeper.stranger
        if route is None:
            raise NotFound(f"there is nothing at {scope['path'][:200]}", hint="see /docs")
        if route.scope is not None:
            require(principal, route.scope)
        if not websocket:
            check_type(connection.headers, route)
        scope["sandkasten.route"] = route
        return Call(self.server, connection, principal, request_id)

    def _find(self, scope: Scope, *, websocket: bool) -> Route | None:
        method = "WS" if websocket else scope["method"]
        # Routes are matched as HTTP ones; what else they are is in their method.
        asked = {**scope, "type": "http", "method": "GET"} if websocket else scope
        allowed: set[str] = set()
        for path, route in self._paths.get(_first(scope["path"]), ()):
            match, child = path.matches(asked)
            if match is Match.NONE:
                continue
            if route.method == method or (route.method == "ANY" and not websocket):
                scope["path_params"] = child["path_params"]
                return route
            if method == "HEAD" and route.method == "GET":
                scope["path_params"] = child["path_params"]
                return route
            allowed.add(route.method)
        if allowed - {"WS"} and not websocket:
            raise InvalidRequest(
                f"{method} cannot be asked of {scope['path'][:200]}",
                hint="it takes " + ", ".join(sorted(allowed - {"WS"})),
                http_status=405,
            )
        return None

    async def _fail(
        self,
        error: SandkastenError,
        connection: HTTPConnection,
        answering: _Answering,
        scope: Scope,
        receive: Receive,
    ) -> None:
        if answering.began:
            # The status line is gone; cutting the answer short is all that is left to say.
            raise _CutShort from error
        if isinstance(connection, WebSocket):
            await answering.refuse_websocket(error)
            return
        await problem(error, answering.request_id)(scope, receive, answering)


class _CutShort(Exception):
    """Makes the server close the connection in the midst of an answer."""


class _Answering:
    """The way out: adds the headers every answer has, and knows whether one has begun."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.began = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.began = True
            headers = list(message.get("headers", ()))
            headers += [
                (b"x-request-id", self.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse_websocket(self, error: SandkastenError) -> None:
        from sandkasten.api.printing import as_json
        from sandkasten.api.problems import body_of, status_of

        status = status_of(error)
        headers = [(b"content-type", b"application/json")]
        await self._send(
            {"type": "websocket.http.response.start", "status": status, "headers": headers}
        )
        body = as_json(body_of(error, self.request_id))
        await self._send({"type": "websocket.http.response.body", "body": body})


def _first(path: str) -> str:
    """Paths are kept apart by their first two names, so that few have to be tried."""
    return "/".join(path.split("/", 3)[:3])


def _is_local(scope: Scope) -> bool:
    """By the Unix socket: it has a path and no port."""
    server = scope.get("server")
    return server is not None and server[1] is None


async def _nothing(_request: Request) -> None: ...


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
