"""The lifecycle of a request, the same for the API and for previews.

An application handles the request and decides which response an error becomes. `Requests` does the
rest: a daemon that goes down waits for the response, a request whose key is revoked ends, a failure
is answered, and the end is in the log, the metrics and the span of the request. After a response
has started, nothing is added to it.

The log has one line for each request, without anything that a client chose freely. Paths and
queries may hold names of files, ids and keys given by mistake; the template of the route is logged
instead. The request id has only letters, digits and three other characters.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from sandkasten.errors import PolicyDenied, SandkastenError, Unauthorized
from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports import UNTRACED
from sandkasten.ports.spans import caller_key
from sandkasten.ports.spans import request_id as request_id_of_log
from sandkasten_server.api.error_responses import CutShort, problem, unforeseen
from sandkasten_server.api.request.request_audit import Auditor
from sandkasten_server.api.request.request_body import ClientLeft

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from sandkasten.model.access.tenancy import Principal
    from sandkasten_server.api.server_context import Server

log = logging.getLogger("sandkasten.api")
MEASURED_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
RECHECK_EVERY_S: Final = 2.0
_POLICY_VIOLATION: Final = 1008
_INTERNAL_ERROR: Final = 1011
# A control frame has at most 125 bytes, two of which are the code (RFC 6455, 5.5).
_MAX_REASON_BYTES: Final = 123
# What probes and scrapers ask for, many times a minute.
_ROUTINE: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_WINDOW_S: Final = 60.0
_LINES_A_WINDOW: Final = 10
_MOST_ADDRESSES: Final = 1024


class KeyRecheck:
    """Rechecks the key of a request that stays open, such as a stream or a terminal.

    A key is checked when a request arrives. A key that is revoked or expires must not live on in
    what it opened. Cancels the task that serves the request, which reports `lost`.
    """

    def __init__(self, check: Callable[[], object]) -> None:
        """Start. `check` raises when the principal is no longer admitted."""
        self.lost: SandkastenError | None = None
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(RECHECK_EVERY_S, self._look)

    def _look(self) -> None:
        try:
            self._check()
        except SandkastenError as exc:
            self.lost = exc
            self._task.cancel()
            return
        self._timer = self._loop.call_later(RECHECK_EVERY_S, self._look)

    def end(self) -> None:
        self._timer.cancel()


class ActiveRequest:
    """A request in progress. Sends its response, and remembers whether that has started."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str]
    ) -> None:
        self.began_at = time.perf_counter()
        is_websocket = scope["type"] == "websocket"
        self.connection: HTTPConnection = (
            WebSocket(scope, receive, send) if is_websocket else Request(scope, receive)
        )
        self.method: str = "WS" if is_websocket else scope["method"]
        sent_id = headers.get("x-request-id", "")
        self.request_id = sent_id if _REQUEST_ID.match(sent_id) else "req_" + secrets.token_hex(8)
        self.added_headers: tuple[tuple[bytes, bytes], ...] = (
            (b"x-request-id", self.request_id.encode()),
            (b"x-content-type-options", b"nosniff"),
        )
        """Headers of every response."""
        self.problem: Callable[[SandkastenError, str], Response] = problem
        """Returns the response for an error and the id of the request."""
        self.span = UNTRACED.begin("")
        self.route: str | None = None
        """The template of its path, once the client may know that there is one."""
        self.is_proxied = False
        """Whether a server inside a sandbox chooses the status."""
        self.status = 0
        """0 if the client had left."""
        self.code: str | None = None
        """The code of the error that was sent."""
        self.recheck: KeyRecheck | None = None
        self._receive = receive
        self._send = send

    async def __call__(self, message: Any) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self.added_headers]
        await self._send(message)

    async def respond(self, response: Response) -> None:
        await response(self.connection.scope, self._receive, self)

    async def fail(self, error: SandkastenError) -> None:
        """Respond with an error; CutShort if a response has started."""
        self.code = error.code
        websocket = self.connection
        if not isinstance(websocket, WebSocket):
            if self.status:
                # The headers were sent; the response can only be aborted.
                raise CutShort from error
            await self.respond(self.problem(error, self.request_id))
        elif websocket.application_state is WebSocketState.CONNECTING:
            await self._refuse_websocket(self.problem(error, self.request_id))
        elif websocket.application_state is WebSocketState.CONNECTED:
            is_refusal = isinstance(error, Unauthorized | PolicyDenied)
            reason = error.message.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
            # The client may leave first.
            with suppress(WebSocketDisconnect, RuntimeError):
                await websocket.close(_POLICY_VIOLATION if is_refusal else _INTERNAL_ERROR, reason)

    async def _refuse_websocket(self, response: Response) -> None:
        self.status = response.status_code
        headers = [
            (b"content-type", response.headers["content-type"].encode()),
            (b"x-request-id", self.request_id.encode()),
        ]
        await self._send(
            {
                "type": "websocket.http.response.start",
                "status": response.status_code,
                "headers": headers,
            }
        )
        await self._send({"type": "websocket.http.response.body", "body": bytes(response.body)})


@dataclass(slots=True)
class _Window:
    began: float
    lines: int = 0
    left_out: int = 0


class RefusalLines:
    """Bounds the lines about refused requests without a valid key: ten a minute from an address.

    Such a request is answered as fast as any other. Keys have 256 random bits, so delays would not
    make guessing harder, and would hold connections open for a client that guesses.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._windows: dict[str, _Window] = {}

    def left_out(self, address: str) -> int | None:
        """Return how many lines were left out before this one; None to leave this one out too."""
        now = self._now()
        window = self._windows.get(address)
        before = 0
        if window is None or now - window.began >= _WINDOW_S:
            if window is not None:
                before = window.left_out
                del self._windows[address]
            elif len(self._windows) >= _MOST_ADDRESSES:
                # The oldest. Its address gets its lines again, as a new one would.
                del self._windows[next(iter(self._windows))]
            self._windows[address] = window = _Window(now)
        if window.lines >= _LINES_A_WINDOW:
            window.left_out += 1
            return None
        window.lines += 1
        return before


class Requests:
    """The requests of one daemon."""

    def __init__(self, server: Server) -> None:
        self.auditor = Auditor(server.stores, server.clock)
        self._server = server
        self._refusals = RefusalLines(server.clock.boottime)
        self._awaited: set[ActiveRequest] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def answered(self) -> None:
        """Wait until every request has its response, except those that `hold` was called for."""
        await self._idle.wait()

    async def serve(
        self, active: ActiveRequest, handle: Callable[[ActiveRequest], Awaitable[None]]
    ) -> None:
        """Let `handle` respond to a request, respond to its errors, and report the end."""
        request_id_of_log.set(active.request_id)
        self._awaited.add(active)
        self._idle.clear()
        try:
            await handle(active)
        except ClientLeft:
            return
        except SandkastenError as exc:
            await self._fail(active, exc)
        except asyncio.CancelledError:
            lost = None if active.recheck is None else active.recheck.lost
            if lost is None:
                raise
            task = asyncio.current_task()
            assert task is not None
            # We cancelled this task to send this error.
            task.uncancel()
            await self._fail(active, lost)
        except Exception as exc:
            log.exception("request.failed", extra={"request_id": active.request_id})
            await self._fail(active, unforeseen(exc))
        finally:
            self._release(active)
            if active.recheck is not None:
                active.recheck.end()
            self._report(active)

    def admitted(self, active: ActiveRequest, principal: Principal) -> None:
        """Name the principal in everything that is reported about a request."""
        scope = active.connection.scope
        scope["sandkasten.principal"] = principal
        caller_key.set(principal.key_id)
        self.auditor.used(principal, scope, active.request_id)

    def hold(self, active: ActiveRequest, check: Callable[[], object] | None) -> None:
        """Let a request last as long as its source or its reader; a drain does not wait for it.

        It ends when `check` raises.
        """
        self._release(active)
        if check is not None:
            active.recheck = KeyRecheck(check)

    def _release(self, active: ActiveRequest) -> None:
        self._awaited.discard(active)
        if not self._awaited:
            self._idle.set()

    async def _fail(self, active: ActiveRequest, error: SandkastenError) -> None:
        if self._server.events is not None:
            self._server.events.emit("http.error", {"code": error.code})
        await active.fail(error)

    def _report(self, active: ActiveRequest) -> None:
        seconds, status = time.perf_counter() - active.began_at, active.status
        connection = active.connection
        if isinstance(connection, WebSocket):
            if connection.application_state is not WebSocketState.CONNECTING:
                status = status or 101
        elif self._server.events is not None:
            self._server.events.emit("http.answered", _measured(active, seconds))
        principal: Principal | None = connection.scope.get("sandkasten.principal")
        key_id = None if principal is None else principal.key_id
        # The anonymous principal belongs to no tenant.
        tenant = None if principal is None else principal.tenant or None
        active.span.set(
            {
                "http.response.status_code": status or None,
                "sandkasten.request_id": active.request_id,
                "sandkasten.tenant": tenant,
                "sandkasten.key_id": key_id,
            }
        )
        if status >= 500:
            active.span.fail(active.code or "INTERNAL", f"status {status}")
        elif active.code is not None:
            active.span.set({"error": active.code})
        left_out: int | None = 0
        # Not one whose key was revoked after the response had started.
        is_stranger = principal is None or active.code == Unauthorized.code
        if is_stranger and active.code is not None and 400 <= status < 500:
            client = connection.scope.get("client")
            left_out = self._refusals.left_out(str(client[0]) if client else "")
        if left_out is not None:
            log_request(
                method=active.method,
                route=active.route,
                status=status,
                seconds=seconds,
                request_id=active.request_id,
                key_id=key_id,
                tenant=tenant,
                code=active.code,
                left_out=left_out,
            )


def _measured(active: ActiveRequest, seconds: float) -> dict[str, str | int | float]:
    """Return the labels of a request, from a closed set.

    Neither a client nor a server inside a sandbox can add values to it.
    """
    is_known = active.route is not None and active.method in MEASURED_METHODS
    return {
        "method": active.method if is_known else "other",
        # The template: ids and paths would make a series of every request.
        "route": active.route or "none",
        "status": f"{active.status // 100}xx" if active.is_proxied else active.status,
        "seconds": seconds,
    }


def log_request(
    *,
    method: str | None,
    route: str | None,
    status: int,
    seconds: float,
    request_id: str,
    key_id: str | None,
    tenant: str | None,
    code: str | None,
    left_out: int = 0,
) -> None:
    """Log a request. What is unknown is None; `status` is 0 if the client had left.

    Probes and scrapes that succeed are DEBUG. `left_out`: lines like this one that were not
    written.
    """
    level = logging.DEBUG if route in _ROUTINE and code is None else logging.INFO
    if log.isEnabledFor(level):
        fields = {
            "method": method,
            "route": route or "none",
            "status": status,
            "ms": round(seconds * 1000, 1),
            "request_id": request_id,
            "key_id": key_id,
            "tenant": tenant,
            "code": code,
        }
        if left_out:
            fields["left_out"] = left_out
        log.log(level, "http.request", extra={"sandkasten": fields})
