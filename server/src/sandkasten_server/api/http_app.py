"""The ASGI application: every route of the table, and what precedes each handler.

Requests to the host name of a preview go to `api.previews` and reach no route. For each other
request, in this order: Host and Origin, the principal, its scope and its rate, and only then the
handler. `request_lifecycle` does the rest. An error becomes the one body of `error_responses`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sandkasten.errors import (
    Busy,
    InvalidRequest,
    NotFound,
    PolicyDenied,
    SandkastenError,
    Unauthorized,
)
from sandkasten.ports import UNTRACED
from sandkasten_runtime.engine.activity import activity
from sandkasten_server.api.dashboard.browser_logins import Credentials, logged_out
from sandkasten_server.api.previews.preview_app import PreviewApp
from sandkasten_server.api.request.authentication import is_local, require
from sandkasten_server.api.request.http_call import Call
from sandkasten_server.api.request.rate_limit import Rates
from sandkasten_server.api.request.request_guard import (
    LOCAL_PREVIEWS,
    NAMED_HOST,
    check_origin,
    check_type,
    host_name,
    plain_headers,
)
from sandkasten_server.api.request.request_lifecycle import (
    MEASURED_METHODS,
    ActiveRequest,
    Requests,
)
from sandkasten_server.api.request.socket_protocols import ticket_of, with_credentials
from sandkasten_server.api.response.sse import EventStream
from sandkasten_server.api.response.streamed_response import Followed
from sandkasten_server.api.route import Paths
from sandkasten_server.api.route_plugins import not_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from starlette.types import Receive, Scope, Send

    from sandkasten.ports import Span
    from sandkasten_server.api.route import Route
    from sandkasten_server.api.server_context import Server

    RouteMatch: TypeAlias = tuple[Route, dict[str, str]] | frozenset[str]
    """A route and the parameters in the path, or the methods of the routes at that path."""

# What a daemon that goes down still answers: to look at what there is, and to end it.
_STILL = frozenset({"GET", "HEAD", "DELETE"})


class App:
    """An ASGI application."""

    def __init__(self, server: Server, routes: Sequence[Route]) -> None:
        self.server = server
        self.routes = tuple(routes)
        self._paths = Paths(routes)
        self._rates = Rates()
        self._requests = Requests(server)
        self._previews = PreviewApp(server, self._requests)

    async def answered(self) -> None:
        """Wait until every request has its response.

        Streams do not count: their clients reconnect to the next daemon and continue there.
        """
        await self._requests.answered()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        headers = plain_headers(scope["headers"])
        active = ActiveRequest(scope, receive, send, headers)
        host = host_name(headers.get("host"))
        if host is not None and host != scope.get(NAMED_HOST) and self.has_preview(host):
            await self._previews.serve(host, active, headers)
            return
        match = self._paths.find(scope["path"], active.method)
        if not isinstance(match, frozenset):
            dialect = match[0].dialect
            if dialect is not None:
                active.problem = dialect.problem
                headers = dialect.headers(self.server.doorkeeper, headers)
            elif active.method == "WS" and match[0].reads_protocols:
                headers = with_credentials(headers)
        with self._traced(active.method, match, headers) as active.span:
            await self._requests.serve(active, partial(self._handle, headers, match))

    async def refuse(
        self, scope: Scope, receive: Receive, send: Send, error: SandkastenError
    ) -> None:
        """Respond with an error, whatever is asked for."""

        async def handle(_: ActiveRequest) -> None:
            raise error

        active = ActiveRequest(scope, receive, send, plain_headers(scope["headers"]))
        await self._requests.serve(active, handle)

    def has_preview(self, host: str) -> bool:
        """Return whether a host name belongs to previews."""
        previews = self.server.previews
        hosts = LOCAL_PREVIEWS if previews is None else previews.hosts
        return hosts.covers(host, self.server.rules.allowed_hosts)

    async def _handle(
        self, headers: dict[str, str], match: RouteMatch, active: ActiveRequest
    ) -> None:
        try:
            await self._answer(headers, match, active)
        except SandkastenError as exc:
            scope = active.connection.scope
            await self._requests.auditor.refused(scope, active.request_id, exc)
            raise

    async def _answer(
        self, headers: dict[str, str], match: RouteMatch, active: ActiveRequest
    ) -> None:
        scope = active.connection.scope
        credentials = self._credentials(scope, headers, match)
        headers = credentials.headers
        try:
            call = self._admitted(active, headers, match)
        except Unauthorized:
            if not await self.server.doorkeeper.renew(headers):
                raise
            call = self._admitted(active, headers, match)
        route: Route = scope["sandkasten.route"]
        if route.method in ("WS", "ANY"):
            self._requests.hold(active, self._recheck(call, credentials))
        with activity(route.extends == "work"):
            response = await route.run(call)
            await self._requests.auditor.changed(call, route, response)
            if isinstance(response, EventStream | Followed):
                self._requests.hold(active, self._recheck(call, credentials))
            if response is not None:
                await active.respond(response)

    def _traced(
        self, method: str, match: RouteMatch, headers: dict[str, str]
    ) -> AbstractContextManager[Span]:
        if isinstance(match, frozenset):
            shown = method if method in MEASURED_METHODS else "HTTP"
            return self.server.tracing.request(shown, headers)
        route = match[0]
        if self._is_open(route):
            # Probes and collectors ask all the time.
            return UNTRACED.request("", {})
        about = {"http.request.method": method, "http.route": route.path}
        return self.server.tracing.request(f"{method} {route.path}", headers, about)

    def _admitted(self, active: ActiveRequest, headers: dict[str, str], match: RouteMatch) -> Call:
        scope = active.connection.scope
        local = is_local(scope)
        if not local:
            check_origin(headers, self.server.rules, scope)
        if isinstance(match, frozenset) or not self._is_open(match[0]):
            # Unauthenticated clients must not learn which routes exist.
            principal = self.server.doorkeeper.admit(headers, local=local)
        else:
            principal = self.server.doorkeeper.stranger
        self._requests.admitted(active, principal)
        self._rates.take(principal)
        if isinstance(match, frozenset):
            raise _nothing_there(match, active.method, scope["path"])
        route, scope["path_params"] = match
        scope["sandkasten.route"] = route
        active.route, active.is_proxied = route.path, route.method == "ANY"
        if route.scope is not None and route.scope != "any key" and not self._is_open(route):
            require(principal, route.scope)
        if self.server.draining and active.method not in _STILL:
            raise Busy("the daemon is shutting down and accepts no new requests", hint="try again")
        if active.method != "WS":
            check_type(headers, route)
        return Call(self.server, active.connection, principal, active.request_id)

    def _credentials(self, scope: Scope, headers: dict[str, str], match: RouteMatch) -> Credentials:
        """Return the credentials of a request, of its login or of its ticket."""
        credentials = Credentials(headers)
        route = None if isinstance(match, frozenset) else match[0]
        # Neither is for routes that lead into a sandbox, nor for other protocols than ours.
        if route is not None and route.dialect is None and route.method != "ANY":
            logins, now = self.server.logins, self.server.clock.boottime()
            if scope["type"] != "websocket":
                credentials = logins.credentials(headers, scope["method"], now)
            elif route.reads_protocols and (ticket := ticket_of(headers)) is not None:
                credentials = logins.redeem(ticket, headers, now)
        scope["sandkasten.credentials"] = credentials
        return credentials

    def _recheck(self, call: Call, credentials: Credentials) -> Callable[[], None] | None:
        """Return what raises once the client is no longer admitted; None if it always is."""
        login = credentials.login
        if not call.principal.key_id and login is None:
            return None

        def check() -> None:
            if login is not None and not self.server.logins.is_live(
                login, self.server.clock.boottime()
            ):
                raise logged_out()
            self.server.doorkeeper.admit(credentials.headers, local=False)

        return check

    def _is_open(self, route: Route) -> bool:
        return route.scope is None or (route.scope == "metrics" and self.server.rules.metrics_open)


class OnlyPreviews:
    """An ASGI application that serves the previews of another and no route."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = plain_headers(scope.get("headers", ()))
        host = host_name(headers.get("host"))
        if scope["type"] == "lifespan" or (host is not None and self._app.has_preview(host)):
            await self._app(scope, receive, send)
            return
        error = PolicyDenied(
            "the Host header does not name a preview",
            hint="use the address that sandkasten url printed",
            http_status=421,
        )
        await self._app.refuse(scope, receive, send, error)


def _nothing_there(allowed: frozenset[str], method: str, path: str) -> SandkastenError:
    other = sorted(allowed - {"WS"})
    if not other or method == "WS":
        missing = not_installed(path)
        if missing is not None:
            return missing
        return NotFound(f"there is nothing at {path[:200]}", hint="see /docs")
    return InvalidRequest(
        f"{path[:200]} does not support {method}",
        hint="use " + ", ".join(other),
        http_status=405,
        allow=other,
    )


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
