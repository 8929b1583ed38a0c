"""One HTTP request carried to a server inside a sandbox, and its answer back, both streamed.

The inner server is hostile: its answer is parsed by h11, its headers are bounded, those that
speak of the connection or would act on our origin are dropped. Fails with ConnectionRefused
when nothing listens, ProtocolViolation (502) when it speaks no HTTP, CommandTimeout (504) when
it does not answer.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import h11
from starlette.responses import Response

from sandkasten.errors import CommandTimeout, ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.types import Receive, Scope, Send

    from sandkasten.api.call import Call
    from sandkasten.engine.connections import PortStream

ANSWER_TIMEOUT_S: Final = 120.0
_MAX_HEADERS: Final = 64 * 1024
_READ: Final = 64 * 1024
# Of one connection, never of what is carried over it (RFC 9110, 7.6.1).
HOP: Final = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
        "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
# Ours, not the sandbox's business: the key opens every sandbox of its tenant.
PRIVATE: Final = frozenset({"authorization", "cookie", "x-sandkasten-tenant", "host"})
# Would act on our origin: what a page there can do, the daemon's operator can.
_ACTING: Final = frozenset(
    {
        "set-cookie", "clear-site-data", "service-worker-allowed", "strict-transport-security",
        "public-key-pins", "alt-svc", "access-control-allow-origin",
        "access-control-allow-credentials", "report-to", "nel", "x-request-id",
    }
)  # fmt: skip
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


async def forward(call: Call, the_id: str, target: Target) -> Response:
    stack = AsyncExitStack()
    try:
        stream = await stack.enter_async_context(call.engine.connect(the_id, target.port))
        carrier = _Carrier(stream, target)
        sending = asyncio.create_task(carrier.send_request(call))
        stack.push_async_callback(_cancelled, sending)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                head = await carrier.answer_head()
        except TimeoutError as exc:
            raise CommandTimeout(
                f"the server on port {target.port} did not answer in {ANSWER_TIMEOUT_S:g} s",
                hint="look at what runs there",
            ) from exc
        except ProtocolViolation:
            if sending.done() and not sending.cancelled():
                # What broke it may be our own side: a body too large, a client gone.
                failure = sending.exception()
                if failure is not None:
                    raise failure from None
            raise
        return _Carried(head, carrier, stack)
    except BaseException:
        await stack.aclose()
        raise


class _Carrier:
    def __init__(self, stream: PortStream, target: Target) -> None:
        self._stream = stream
        self._pieces = stream.__aiter__()
        self._target = target
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADERS)

    async def send_request(self, call: Call) -> None:
        request = call.request
        headers = onward_headers(call, self._target)
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
                target=self._target.path.encode("latin-1"),
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
                f"the request cannot be passed on: {exc}", hint="look at its headers"
            ) from exc
        if data:
            await self._stream.send(data)

    async def answer_head(self) -> h11.Response:
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if isinstance(event, h11.ConnectionClosed):
                raise _broken("it closed the connection without an answer")

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
            if event is not h11.NEED_DATA:
                return event
            try:
                piece = await anext(self._pieces)
            except StopAsyncIteration:
                piece = b""
            for start in range(0, len(piece) or 1, _READ):
                self._http.receive_data(piece[start : start + _READ])


class _Carried(Response):
    """The inner server's answer on its way out; what it was carried by closes with it."""

    def __init__(self, head: h11.Response, carrier: _Carrier, stack: AsyncExitStack) -> None:
        self._head = head
        self._carrier = carrier
        self._stack = stack
        self.status_code = head.status_code
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            headers = back_headers(self._head.headers, self._carrier._target)
            status = self._head.status_code
            await send({"type": "http.response.start", "status": status, "headers": headers})
            async for piece in self._carrier.body():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def onward_headers(call: Call, target: Target) -> list[tuple[bytes, bytes]]:
    connection = call.connection
    named = {name.strip().lower() for name in connection.headers.get("connection", "").split(",")}
    dropped = HOP | PRIVATE | named | {"content-length", "expect"}
    kept = [
        (name, value)
        for name, value in connection.headers.raw
        if name.decode("latin-1").lower() not in dropped
        and not name.lower().startswith((b"sec-websocket", b"x-forwarded-"))
    ]
    host = connection.headers.get("host", "localhost").encode("latin-1")
    return [
        (b"host", f"localhost:{target.port}".encode()),
        *kept,
        (b"x-forwarded-host", host),
        (b"x-forwarded-proto", b"https" if connection.url.scheme in ("https", "wss") else b"http"),
        (b"x-forwarded-prefix", target.prefix.encode()),
    ]


def back_headers(
    headers: Sequence[tuple[bytes, bytes]], target: Target
) -> list[tuple[bytes, bytes]]:
    kept = []
    for name, value in headers:
        text = name.decode("latin-1").lower()
        if text in HOP or text in _ACTING or text in _OURS:
            continue
        if text == "location" and value.startswith(b"/") and not value.startswith(b"//"):
            value = target.prefix.encode() + value
        kept.append((name.lower(), value))
    kept.append(OPAQUE)
    return kept


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _broken(why: str) -> ProtocolViolation:
    return ProtocolViolation(
        f"the server inside speaks no proper HTTP: {why}", hint="look at what listens on that port"
    )
