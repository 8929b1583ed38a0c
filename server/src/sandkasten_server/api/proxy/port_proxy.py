"""The HTTP port proxy: one request to a server inside a sandbox, streamed both ways.

The inner server is untrusted: h11 parses its response, its headers are limited, and those about the
connection or our origin are dropped. ConnectionRefused if nothing listens, ProtocolViolation (502)
for invalid HTTP, CommandTimeout (504) without a response.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import h11
from starlette.responses import Response

from sandkasten.errors import CommandTimeout, ProtocolViolation, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.api_keys import id_of_key
from sandkasten_server.api.proxy.proxy_cookies import TRAFFIC_HEADER, host_only, without_own
from sandkasten_server.api.proxy.proxy_redirects import kept_inside
from sandkasten_server.api.request.request_body import ClientLeft

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from sandkasten_runtime.engine.commands.port_stream import PortStream
    from sandkasten_server.api.request.http_call import Call

ANSWER_TIMEOUT_S: Final = 120.0
_MAX_HEADERS: Final = 64 * 1024
# Interim answers (1xx) before the one that counts.
_MAX_INTERIM: Final = 16
# Parsed in a row before others have their turn: a body can be cut into pieces of one byte.
_EVENTS_IN_A_ROW: Final = 64
# h11 accepts them in a header's value, and our own server does not send them.
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
# Fields of one connection, never of what is carried over it (RFC 9110, 7.6.1).
HOP: Final = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
        "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
# Ours, not the sandbox's business: the key opens every sandbox of its tenant.
PRIVATE: Final = frozenset(
    {"authorization", "cookie", "x-sandkasten-tenant", "host", TRAFFIC_HEADER}
)
_KEY_HEADER: Final = b"x-api-key"
# Would act on our origin: what a page there can do, the daemon's operator can.
_ACTING: Final = frozenset(
    {
        "set-cookie", "clear-site-data", "service-worker-allowed", "strict-transport-security",
        "public-key-pins", "alt-svc", "access-control-allow-origin",
        "access-control-allow-credentials", "report-to", "nel", "x-request-id",
        # `www-authenticate` makes a browser ask for a password in our name. A browser obeys the
        # first of two `x-content-type-options`.
        "www-authenticate", "x-content-type-options",
    }
)  # fmt: skip
# Those of the fields above that reach beyond the origin of a preview: other ports, other names of
# the domain.
_ACTING_BEYOND: Final = frozenset({"clear-site-data", "public-key-pins", "alt-svc"})
# The server sets its own, and there must be one.
_OURS: Final = frozenset({"date"})
OPAQUE: Final = (
    b"content-security-policy",
    b"sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts",
)


@dataclass(frozen=True, slots=True)
class Target:
    port: int
    path: str
    """With its query, as it goes on the wire."""
    prefix: str
    """What stands before the path on our side."""
    own_origin: bool = False
    """Whether the port has its own host name, so that its pages may use their origin."""
    keyed: bool = False
    """Whether the request's Authorization is a key of the daemon."""
    tls: bool = False
    """Whether the client uses TLS, although a proxy in front may have ended it."""
    host: str | None = None
    """The Host that the server sees; None: that of the request, or `localhost`."""


async def forward(call: Call, the_id: str, target: Target) -> Response:
    stack = AsyncExitStack()
    try:
        stream = await stack.enter_async_context(call.engine.connect(the_id, target.port))
        carrier = _Carrier(stream, target)
        asking = asyncio.create_task(carrier.ask(call))
        stack.push_async_callback(_cancelled, asking)
        answering = asyncio.create_task(carrier.answer_head())
        stack.push_async_callback(_cancelled, answering)
        done, _ = await asyncio.wait(
            (asking, answering), timeout=ANSWER_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if answering in done:
            return _Carried(answering.result(), carrier, asking, stack)
        if asking in done:
            asking.result()
        raise CommandTimeout(
            f"the server on port {target.port} did not answer in {ANSWER_TIMEOUT_S:g} s",
            hint="check the server on that port",
        )
    except BaseException:
        await stack.aclose()
        raise


class _Carrier:
    def __init__(self, stream: PortStream, target: Target) -> None:
        self._stream = stream
        self._pieces = stream.__aiter__()
        self.target = target
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADERS)
        self._events = 0
        self._deaf = False

    async def ask(self, call: Call) -> None:
        """Send the request; then wait until the client disconnects (ClientLeft).

        An invalid request or an unauthorized client is raised at once: no response will follow.
        """
        await self._send_request(call)
        while (await call.request.receive())["type"] != "http.disconnect":
            pass
        raise ClientLeft

    async def _send_request(self, call: Call) -> None:
        request = call.request
        headers = onward_headers(call, self.target)
        length = request.headers.get("content-length")
        chunked = "transfer-encoding" in request.headers
        if length is not None:
            headers.append((b"content-length", length.encode("latin-1")))
        elif chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        headers.append((b"connection", b"close"))
        await self._send(
            h11.Request(
                method=request.method.encode(),
                target=self.target.path.encode("latin-1"),
                headers=headers,
            )
        )
        if length is not None or chunked:
            async for piece in call.pieces(call.server.rules.max_upload_bytes):
                await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def _send(self, event: Any) -> None:
        try:
            data = self._http.send(event)
        except h11.LocalProtocolError as exc:
            raise ProtocolViolation(
                f"the request cannot be passed on: {exc}", hint="check its headers"
            ) from exc
        if data and not self._deaf:
            try:
                await self._stream.send(data)
            except SandkastenError:
                # The server inside reads no more. Its response, or the error, comes from
                # `answer_head`.
                self._deaf = True

    async def answer_head(self) -> h11.Response:
        for _ in range(_MAX_INTERIM + 1):
            event = await self._next()
            if isinstance(event, h11.Response):
                if event.status_code > 599:
                    raise _broken(f"there is no status {event.status_code}")
                if any(_CONTROL.search(value) for _, value in event.headers):
                    raise _broken("a header contains a control character")
                return event
            if isinstance(event, h11.ConnectionClosed):
                raise _broken("it closed the connection without an answer")
        raise _broken(f"more than {_MAX_INTERIM} interim answers")

    async def body(self) -> AsyncIterator[bytes]:
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return

    async def _next(self) -> Any:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as exc:
                raise _broken(str(exc)[:200]) from exc
            if event is h11.PAUSED:
                # After CONNECT the connection is no longer HTTP, and no event follows.
                raise _broken("it left HTTP")
            if event is not h11.NEED_DATA:
                self._events += 1
                if self._events % _EVENTS_IN_A_ROW == 0:
                    await asyncio.sleep(0)
                return event
            try:
                piece = await anext(self._pieces)
            except StopAsyncIteration:
                piece = b""
            self._http.receive_data(piece)


class _Carried(Response):
    """The inner server's response; closes the inner connection when it ends.

    `asking` fails when the client disconnects; otherwise an endless response would be read for
    ever.
    """

    def __init__(
        self,
        head: h11.Response,
        carrier: _Carrier,
        asking: asyncio.Task[None],
        stack: AsyncExitStack,
    ) -> None:
        self._head = head
        self._carrier = carrier
        self._asking = asking
        self._stack = stack
        self.status_code = head.status_code
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            pumping = asyncio.create_task(self._pump(scope, send))
            self._stack.push_async_callback(_cancelled, pumping)
            done, _ = await asyncio.wait(
                (self._asking, pumping), return_when=asyncio.FIRST_COMPLETED
            )
            (pumping if pumping in done else self._asking).result()

    async def _pump(self, scope: Scope, send: Send) -> None:
        status = self._head.status_code
        headers = back_headers(self._head, self._carrier.target, scope)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        async for piece in self._carrier.body():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def onward_headers(call: Call, target: Target) -> list[tuple[bytes, bytes]]:
    connection = call.connection
    named = {name.strip().lower() for name in connection.headers.get("connection", "").split(",")}
    private = PRIVATE
    if target.own_origin:
        private -= {"cookie"} if target.keyed else {"cookie", "authorization"}
    dropped = HOP | private | named | {"content-length", "expect"}
    onward = [
        (name, value)
        for name, value in connection.headers.raw
        if name.decode("latin-1").lower() not in dropped
        and not name.lower().startswith((b"sec-websocket", b"x-forwarded-"))
        and not (name.lower() == _KEY_HEADER and _is_our_key(call, value))
    ]
    host = connection.headers.get("host", "localhost").encode("latin-1")
    tls = target.tls or connection.url.scheme in ("https", "wss")
    scheme = b"https" if tls else b"http"
    forwarded = [(b"x-forwarded-host", host), (b"x-forwarded-proto", scheme)]
    if target.own_origin:
        shown = host if target.host is None else target.host.encode("latin-1")
        return [(b"Host", shown), *_cookies_inward(onward), *forwarded]
    return [
        (b"Host", f"localhost:{target.port}".encode()),
        *onward,
        *forwarded,
        (b"x-forwarded-prefix", target.prefix.encode()),
    ]


def _is_our_key(call: Call, value: bytes) -> bool:
    """Return whether `X-API-KEY` has, or could have, a key of the daemon, as E2B's clients send it.

    The server inside may have its own keys in it.
    """
    key, doorkeeper = value.decode("latin-1").strip(), call.server.doorkeeper
    if id_of_key(key) is not None:
        return True
    if doorkeeper.is_open:
        return False
    try:
        doorkeeper.admit({"authorization": f"Bearer {key}"}, local=False)
    except SandkastenError:
        return False
    return True


def _cookies_inward(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    onward = []
    for name, value in headers:
        if name.lower() == b"cookie":
            value = without_own(value.decode("latin-1")).encode("latin-1")
            if not value:
                continue
        onward.append((name, value))
    return onward


def back_headers(head: h11.Response, target: Target, scope: Scope) -> list[tuple[bytes, bytes]]:
    headers = [(name.decode("latin-1").lower(), value) for name, value in head.headers]
    dropped = HOP | (_ACTING_BEYOND if target.own_origin else _ACTING) | _OURS
    for name, value in headers:
        if name == "connection":
            dropped |= {name.strip().lower() for name in value.decode("latin-1").split(",")}
    if head.status_code in (204, 304) or any(name == "transfer-encoding" for name, _ in headers):
        # Not the length of what we send.
        dropped |= {"content-length"}
    shown_headers = []
    for name, value in headers:
        if name in dropped:
            continue
        if name == "location":
            where = kept_inside(
                value.decode("latin-1"),
                port=target.port,
                path=target.path,
                prefix=target.prefix,
                own_addresses=() if target.own_origin else _daemon_addresses(scope),
                scheme=scope.get("scheme", "http"),
            )
            if where is None:
                continue
            value = where.encode("latin-1")
        elif name == "set-cookie":
            cookie = host_only(value.decode("latin-1"))
            if cookie is None:
                continue
            value = cookie.encode("latin-1")
        shown_headers.append((name.encode("latin-1"), value))
    if not target.own_origin:
        shown_headers.append(OPAQUE)
    return shown_headers


def _daemon_addresses(scope: Scope) -> list[str]:
    """Return the Host header, and the address and port that accepted the connection."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"localhost")
    addresses = [host.decode("latin-1")]
    # A Unix socket has no port.
    address, port = scope.get("server") or ("", None)
    if port is not None:
        address = address.partition("%")[0]
        addresses.append(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
    return addresses


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _broken(why: str) -> ProtocolViolation:
    return ProtocolViolation(
        f"the server inside sent invalid HTTP: {why}",
        hint="check the server that listens on that port",
    )
