"""The ASGI application: every route of the table, and what precedes each handler.

Requests to the host name of a preview go to `api.previews` and reach no route. For each other
request, in this order: an id, Host and Origin, the principal, its scope and its rate, and
only then the handler. An error becomes the one body of `error_responses`; after a response has
started, nothing is added to it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket, WebSocketState

from sandkasten.api.dashboard.browser_logins import Credentials, logged_out
from sandkasten.api.error_responses import CutShort, body_of, problem, status_of, unforeseen
from sandkasten.api.previews.preview_app import PreviewApp
from sandkasten.api.request.authentication import require
from sandkasten.api.request.http_call import Call
from sandkasten.api.request.key_recheck import Held
from sandkasten.api.request.rate_limit import Rates
from sandkasten.api.request.request_audit import Auditor
from sandkasten.api.request.request_body import ClientLeft
from sandkasten.api.request.request_guard import (
    NAMED_HOST,
    check_origin,
    check_type,
    host_name,
    plain_headers,
)
from sandkasten.api.request.request_log import RefusalLines, log_request
from sandkasten.api.request.route_matcher import Paths
from sandkasten.api.request.socket_protocols import ticket_of, with_credentials
from sandkasten.api.response.json_pieces import as_json
from sandkasten.api.response.sse import EventStream
from sandkasten.api.response.streamed_response import Followed
from sandkasten.engine.activity import activity
from sandkasten.errors import (
    Busy,
    InvalidRequest,
    NotFound,
    PolicyDenied,
    SandkastenError,
    Unauthorized,
)
from sandkasten.ports import UNTRACED
from sandkasten.ports.spans import caller_key
from sandkasten.ports.spans import request_id as request_id_of_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from starlette.types import Receive, Scope, Send

    from sandkasten.api.route import Dialect, Route
    from sandkasten.api.server_context import Server
    from sandkasten.model.access.tenancy import Principal
    from sandkasten.ports import Span

log = logging.getLogger("sandkasten.api")
# What a daemon that goes down still answers: to look at what there is, and to end it.
_STILL = frozenset({"GET", "HEAD", "DELETE"})
_MEASURED = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_POLICY_VIOLATION = 1008
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


class App:
    """An ASGI application."""

    def __init__(self, server: Server, routes: Sequence[Route]) -> None:
        self.server = server
        self.routes = tuple(routes)
        self._paths = Paths(routes)
        self._rates = Rates()
        self._auditor = Auditor(server)
        self._refusals = RefusalLines(server.clock.boottime)
        self._at_work = _AtWork()
        self._previews = PreviewApp(server)

    async def answered(self) -> None:
        """Wait until every request has its response.

        Streams do not count: their clients reconnect to the next daemon and continue there.
        """
        await self._at_work.idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        began = time.perf_counter()
        websocket = scope["type"] == "websocket"
        connection: HTTPConnection = (
            WebSocket(scope, receive, send) if websocket else Request(scope, receive)
        )
        headers = plain_headers(scope["headers"])
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else "req_" + secrets.token_hex(8)
        host = host_name(headers.get("host"))
        named = scope.get(NAMED_HOST)
        if host is not None and host != named and self._previews.covers(host):
            await self._previews.serve(host, connection, headers, request_id, receive, send)
            return
        method = "WS" if websocket else scope["method"]
        found = self._paths.find(scope["path"], method)
        dialect = None if isinstance(found, frozenset) else found[0].dialect
        scope["sandkasten.dialect"] = dialect
        if dialect is not None:
            headers = dialect.headers(self.server.doorkeeper, headers)
        elif method == "WS" and not isinstance(found, frozenset) and found[0].reads_protocols:
            headers = with_credentials(headers)
        answering = _Answering(send, request_id)
        request_id_of_log.set(answering.request_id)
        with self._traced(method, found, headers) as span:
            try:
                await self._serve(connection, scope, receive, answering, headers, found)
            finally:
                self._note(connection, answering, time.perf_counter() - began, span)

    async def _serve(
        self,
        connection: HTTPConnection,
        scope: Scope,
        receive: Receive,
        answering: _Answering,
        headers: dict[str, str],
        found: tuple[Route, dict[str, str]] | frozenset[str],
    ) -> None:
        request_id = answering.request_id
        work = self._at_work.begin()
        held: Held | None = None
        try:
            credentials = self._credentials(scope, headers, found)
            headers = credentials.headers
            try:
                call = self._admitted(connection, scope, headers, request_id, found)
            except Unauthorized:
                if not await self.server.doorkeeper.renew(headers):
                    raise
                call = self._admitted(connection, scope, headers, request_id, found)
            route: Route = scope["sandkasten.route"]
            if route.method in ("WS", "ANY"):
                # Has no deadline.
                work.end()
                held = self._held(call, credentials)
            with activity(route.extends == "work"):
                response = await route.run(call)
                await self._auditor.changed(call, route, response)
                if isinstance(response, EventStream | Followed):
                    work.end()
                    held = self._held(call, credentials)
                if response is not None:
                    await response(scope, receive, answering)
        except ClientLeft:
            return
        except SandkastenError as exc:
            await self._auditor.refused(scope, request_id, exc)
            await self._fail(exc, connection, answering, scope, receive)
        except asyncio.CancelledError:
            if held is None or held.lost is None:
                raise
            await self._shut(held.lost, connection, answering, scope, receive)
        except Exception as exc:
            log.exception("request.failed", extra={"request_id": request_id})
            await self._fail(unforeseen(exc), connection, answering, scope, receive)
        finally:
            work.end()
            if held is not None:
                held.end()

    def _traced(
        self,
        method: str,
        found: tuple[Route, dict[str, str]] | frozenset[str],
        headers: dict[str, str],
    ) -> AbstractContextManager[Span]:
        if isinstance(found, frozenset):
            return self.server.tracing.request(method if method in _MEASURED else "HTTP", headers)
        route = found[0]
        if self._is_open(route):
            # Probes and collectors ask all the time.
            return UNTRACED.request("", {})
        about = {"http.request.method": method, "http.route": route.path}
        return self.server.tracing.request(f"{method} {route.path}", headers, about)

    def has_preview(self, host: str | None) -> bool:
        """Return whether a Host header belongs to previews."""
        name = host_name(host)
        return name is not None and self._previews.covers(name)

    def _admitted(
        self,
        connection: HTTPConnection,
        scope: Scope,
        headers: dict[str, str],
        request_id: str,
        found: tuple[Route, dict[str, str]] | frozenset[str],
    ) -> Call:
        local = _is_local(scope)
        if not local:
            check_origin(headers, self.server.rules, scope)
        method = "WS" if isinstance(connection, WebSocket) else scope["method"]
        route = None if isinstance(found, frozenset) else found[0]
        if route is None or not self._is_open(route):
            # Who may not come in learns nothing of what is there.
            principal = self.server.doorkeeper.admit(headers, local=local)
            caller_key.set(principal.key_id)
            self._auditor.used(principal, scope, request_id)
            self._rates.take(principal)
        else:
            principal = self.server.doorkeeper.stranger
        scope["sandkasten.principal"] = principal
        if isinstance(found, frozenset):
            raise _nothing_there(found, method, scope["path"])
        route, scope["path_params"] = found
        scope["sandkasten.route"] = route
        if route.scope is not None and route.scope != "any key" and not self._is_open(route):
            require(principal, route.scope)
        if self.server.draining and method not in _STILL:
            raise Busy("the daemon is shutting down and accepts no new requests", hint="try again")
        if method != "WS":
            check_type(headers, route)
        return Call(self.server, connection, principal, request_id)

    def _credentials(
        self,
        scope: Scope,
        headers: dict[str, str],
        found: tuple[Route, dict[str, str]] | frozenset[str],
    ) -> Credentials:
        """Return the credentials of a request, of its login or of its ticket."""
        credentials = Credentials(headers)
        route = None if isinstance(found, frozenset) else found[0]
        # Neither is for routes that lead into a sandbox, nor for other protocols than ours.
        if route is not None and route.dialect is None and route.method != "ANY":
            logins, now = self.server.logins, self.server.clock.boottime()
            if scope["type"] != "websocket":
                credentials = logins.credentials(headers, scope["method"], now)
            elif route.reads_protocols and (ticket := ticket_of(headers)) is not None:
                credentials = logins.redeem(ticket, headers, now)
        scope["sandkasten.credentials"] = credentials
        return credentials

    def _held(self, call: Call, credentials: Credentials) -> Held | None:
        if not call.principal.key_id and credentials.login is None:
            return None
        return Held(lambda: self._recheck(credentials))

    def _recheck(self, credentials: Credentials) -> None:
        login, now = credentials.login, self.server.clock.boottime()
        if login is not None and not self.server.logins.is_live(login, now):
            raise logged_out()
        self.server.doorkeeper.admit(credentials.headers, local=False)

    async def _shut(
        self,
        error: SandkastenError,
        connection: HTTPConnection,
        answering: _Answering,
        scope: Scope,
        receive: Receive,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        # It was us who cancelled it, and this is what for.
        task.uncancel()
        if (
            isinstance(connection, WebSocket)
            and connection.application_state is WebSocketState.CONNECTED
        ):
            await connection.close(_POLICY_VIOLATION, error.message)
            return
        await self._fail(error, connection, answering, scope, receive)

    def _is_open(self, route: Route) -> bool:
        return route.scope is None or (route.scope == "metrics" and self.server.rules.metrics_open)

    def _note(
        self, connection: HTTPConnection, answering: _Answering, seconds: float, span: Span
    ) -> None:
        scope = connection.scope
        route: Route | None = scope.get("sandkasten.route")
        principal: Principal | None = scope.get("sandkasten.principal")
        status = answering.status
        if isinstance(connection, WebSocket):
            method = "WS"
            if connection.application_state is not WebSocketState.CONNECTING:
                status = status or 101
        else:
            method = scope["method"]
            if self.server.events is not None:
                self.server.events.emit("http.answered", _measured(method, route, status, seconds))
        span.set(
            {
                "http.response.status_code": status or None,
                "sandkasten.request_id": answering.request_id,
                "sandkasten.tenant": None if principal is None else principal.tenant or None,
                "sandkasten.key_id": None if principal is None else principal.key_id,
            }
        )
        if status >= 500:
            span.fail(answering.code or "INTERNAL", f"status {status}")
        elif answering.code is not None:
            span.set({"error": answering.code})
        client = scope.get("client")
        left_out = self._refusals.left_out(str(client[0]) if client else "") if status == 401 else 0
        if left_out is None:
            return
        log_request(
            method=method,
            route=None if route is None else route.path,
            status=status,
            seconds=seconds,
            request_id=answering.request_id,
            key_id=None if principal is None else principal.key_id,
            # The anonymous principal belongs to no tenant.
            tenant=None if principal is None else principal.tenant or None,
            code=answering.code,
            left_out=left_out,
        )

    async def _fail(
        self,
        error: SandkastenError,
        connection: HTTPConnection,
        answering: _Answering,
        scope: Scope,
        receive: Receive,
    ) -> None:
        answering.code = error.code
        if self.server.events is not None:
            self.server.events.emit("http.error", {"code": error.code})
        if answering.began:
            # The status line is gone; cutting the answer short is all that is left to say.
            raise CutShort from error
        if isinstance(connection, WebSocket):
            await answering.refuse_websocket(error)
            return
        dialect: Dialect | None = scope["sandkasten.dialect"]
        told = problem if dialect is None else dialect.problem
        await told(error, answering.request_id)(scope, receive, answering)


class OnlyPreviews:
    """An ASGI application that serves the previews of another and no route."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = plain_headers(scope.get("headers", ()))
        if scope["type"] == "lifespan" or self._app.has_preview(headers.get("host")):
            await self._app(scope, receive, send)
            return
        error = PolicyDenied(
            "the Host header does not name a preview",
            hint="use the address that sandkasten url printed",
            http_status=421,
        )
        answering = _Answering(send, "req_" + secrets.token_hex(8))
        if scope["type"] == "websocket":
            await receive()
            await answering.refuse_websocket(error)
            return
        await problem(error, answering.request_id)(scope, receive, answering)


class _AtWork:
    """Counts requests in progress, and signals when there are none."""

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self.count = 0

    def begin(self) -> _Work:
        self.count += 1
        self.idle.clear()
        return _Work(self)


class _Work:
    """One request in progress; ending it twice is fine."""

    __slots__ = ("_all", "_ended")

    def __init__(self, all_: _AtWork) -> None:
        self._all = all_
        self._ended = False

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._all.count -= 1
            if not self._all.count:
                self._all.idle.set()


class _Answering:
    """Adds the headers that every response has, and remembers whether one has started."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.began = False
        self.status = 0
        """0 if the client had left."""
        self.code: str | None = None
        """The code of the error that was sent."""

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.began = True
            self.status = message["status"]
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
        await self._send(message)

    async def refuse_websocket(self, error: SandkastenError) -> None:
        status = self.status = status_of(error)
        headers = [(b"content-type", b"application/json")]
        await self._send(
            {"type": "websocket.http.response.start", "status": status, "headers": headers}
        )
        body = as_json(body_of(error, self.request_id))
        await self._send({"type": "websocket.http.response.body", "body": body})


def _measured(
    method: str, route: Route | None, status: int, seconds: float
) -> dict[str, str | int | float]:
    """Return the labels of a request, from a closed set.

    Neither a client nor a server inside a sandbox can add values to it.
    """
    shown: str | int = status
    if route is not None and route.method == "ANY":
        shown = f"{status // 100}xx"
    return {
        "method": method if route is not None and method in _MEASURED else "other",
        # The template: ids and paths would make a series of every request.
        "route": "none" if route is None else route.path,
        "status": shown,
        "seconds": seconds,
    }


def _nothing_there(allowed: frozenset[str], method: str, path: str) -> SandkastenError:
    other = sorted(allowed - {"WS"})
    if not other or method == "WS":
        return NotFound(f"there is nothing at {path[:200]}", hint="see /docs")
    return InvalidRequest(
        f"{path[:200]} does not support {method}",
        hint="use " + ", ".join(other),
        http_status=405,
        allow=other,
    )


def _is_local(scope: Scope) -> bool:
    """Return whether the request came over the Unix socket, which has a path and no port."""
    server = scope.get("server")
    return server is not None and server[1] is None


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
