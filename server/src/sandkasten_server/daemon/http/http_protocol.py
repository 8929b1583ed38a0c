"""HTTP connections with deadlines, so that an idle client cannot hold one open.

Adds to uvicorn's protocols: a deadline and bounds for the headers, a deadline for a client that
does not read, an end for a client that still sends after the response, turns for the others while
one sends or is sent a lot, and an end for a response whose client has left. Knows no route and no
key; a refused request gets the common error body, and the connection is closed.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sandkasten.errors import InvalidRequest, PayloadTooLarge, SandkastenError
from sandkasten_server.api.error_responses import body_of
from sandkasten_server.api.http_limits import HttpLimits
from sandkasten_server.api.request.request_body import LEFT, ClientLeft
from sandkasten_server.api.request.request_lifecycle import log_request
from sandkasten_server.api.response.json_response import as_json
from sandkasten_server.daemon.http.receive_buffer import ReceiveBuffer, has_left, reset

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from sandkasten.errors import Detail

# After the response, for bytes that were already on their way; they are read and dropped.
LINGER_S: Final = 2.0
# While a request is not read: how often to look whether its client is still there.
WATCH_S: Final = 0.5
# Up to this size copying costs less than a second system call.
_JOINED_BYTES: Final = 64 * 1024
# Parsed in a row: up to 900 of the smallest requests (17 ms). With 2 kB, an
# upload takes a third more processor time than with 16 kB.
_HTTP_SLICE_BYTES: Final = 16 * 1024
_PHRASES: Final = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
}


class _Joined:
    """A transport for one response that sends its headers with the first piece of its body."""

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            # The client has left; uvloop would log a write as a mistake of the application.
            self._held = b""
        elif self._held is None:
            self._held = data
            # Headers must not wait for a body that comes later.
            self._loop.call_soon(self._flush)
        elif self._held and len(data) <= _JOINED_BYTES:
            data, self._held = self._held + data, b""
            self._transport.write(data)
        else:
            self._flush()
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._held and not self._transport.is_closing():
            data, self._held = self._held, b""
            self._transport.write(data)


class _Flow(FlowControl):
    """Flow control that parses what was received before it reads more.

    Pipelined requests are answered before more of them are parsed: each takes a hundred times its
    size in memory.
    """

    def __init__(self, protocol: GuardedProtocol) -> None:
        super().__init__(protocol.transport)
        self._protocol = protocol

    def pause_reading(self) -> None:
        super().pause_reading()
        self._protocol.watch_peer()

    def resume_reading(self) -> None:
        if self.read_paused and not self._protocol.pipeline:
            self.read_paused = False
            self._protocol.received.proceed()


class _GuardedResponses:
    """An application each of whose responses goes through here, whatever produces it.

    After each piece of a streamed body the others have a turn, even if the client takes everything
    at once or the producer never waits. When the client has left, ClientLeft ends the producer:
    the transport drops what is written to it then, without a limit. A HEAD request is answered by
    the headers, and no body is produced for it.
    """

    __slots__ = ("_app", "_cycle", "_transport")

    def __init__(self, app: Any, cycle: RequestResponseCycle, transport: asyncio.Transport) -> None:
        self._app = app
        self._cycle = cycle
        self._transport = transport

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_head = scope["method"] == "HEAD"

        async def answer(message: Any) -> None:
            begins = message["type"] == "http.response.start"
            if begins or not is_head:
                await send(message)
            if begins and is_head:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            if message.get("more_body"):
                await asyncio.sleep(0)
                if is_head or self._transport.is_closing():
                    raise ClientLeft

        try:
            await self._app(scope, receive, answer)
        except ClientLeft:
            # The transport may report the end only in the next turn.
            self._cycle.disconnected = True


def guarded(rules: HttpLimits) -> type[HttpToolsProtocol]:
    """Return the protocol class with these rules, for uvicorn's `http`."""

    class Guarded(GuardedProtocol):
        rules_ = rules

    return Guarded


class GuardedProtocol(HttpToolsProtocol):
    rules_: ClassVar[HttpLimits] = HttpLimits()

    _heading = False
    """Whether the headers of a request are being read."""
    _whole = True
    """Whether the current request was read to its end."""
    _refused = False
    _upgraded = False
    _head_bytes = 0
    _patience: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _watching: asyncio.TimerHandle | None = None
    _answering: RequestResponseCycle | None = None
    """The request whose response is produced; `cycle` may be a later one of a pipeline."""
    received: ReceiveBuffer

    # ---- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(self)
        self.received = ReceiveBuffer(
            transport,
            self.loop,
            slice_bytes=_HTTP_SLICE_BYTES,
            parse=self._parse,
            is_paused=lambda: self.flow.read_paused,
        )
        self._left = asyncio.Event()
        # Its lines contain whole URLs, which may hold secrets by mistake.
        self.access_log = False
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self._left.set()
        self.received.close()
        if self._answering is not None and not self._answering.response_complete:
            # uvicorn only reports the last one that was received.
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.received.received(data)

    def _parse(self, data: bytes) -> None:
        if self._refused:
            return
        if self._upgraded:
            self.transport.get_protocol().data_received(data)  # type: ignore[attr-defined]
            return
        heading = self._heading
        super().data_received(data)
        if heading and self._heading:
            # The parser keeps a half-read header without counting its size.
            self._head_bytes += len(data)
            if self._head_bytes > self.rules_.max_header_bytes:
                self._refuse_head()
        elif self._idle and self._patience is None and self.timeout_keep_alive_task is None:
            # Empty lines between two requests ended the keep-alive wait, so start this one.
            self._wait_for_headers()

    def handle_websocket_upgrade(self) -> None:
        self._cancel()
        if not self._refused:
            # From here on the WebSocket protocol owns the connection.
            self._upgraded = True
            super().handle_websocket_upgrade()
            if not self.transport.get_protocol().handshake_initiated:  # type: ignore[attr-defined]
                # Its parser is stricter, and would wait for ever.
                self._refuse(
                    400,
                    InvalidRequest(
                        "malformed WebSocket request",
                        hint="send ASCII, with at most 8 kB in the URL and in each header",
                    ),
                )

    @property
    def _idle(self) -> bool:
        return (
            self._whole
            and not self._heading
            and not self._refused
            and not self._upgraded
            and self.parser is not None
            and (self.cycle is None or self.cycle.response_complete)
        )

    # ---- one request

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._heading, self._whole = True, False
        self._head_bytes = 0
        if self._patience is None:
            self._wait_for_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        # The parser removes white space before a value, and leaves it behind one (RFC 9110, 5.5).
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        self._heading = False
        self._rest()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.rules_.max_header_bytes or len(self.headers) > self.rules_.max_headers:
            self._refuse_head()
        if not self._refused:
            self.scope[LEFT] = self._left  # type: ignore[typeddict-unknown-key]
            super().on_headers_complete()
            if self.cycle is not None:
                # The cycle's task has not started yet.
                self.cycle.transport = _Joined(self.transport, self.loop)  # type: ignore[assignment]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, _GuardedResponses(app, cycle, self.transport))

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._whole = True
        if self._refused:
            return
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:
            self._rest()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._whole and not self.transport.is_closing():
            self._rest()
            self._patience = self.loop.call_later(LINGER_S, self.transport.abort)

    # ---- a client that leaves while nothing is read

    def watch_peer(self) -> None:
        """Look from time to time whether the client has left, while reading is paused.

        Without reading, the end of the connection is not seen, and the request would wait for as
        long as the program that takes its body.
        """
        if self._watching is None and not self.transport.is_closing():
            self._watching = self.loop.call_later(WATCH_S, self._look_at_peer)

    def _look_at_peer(self) -> None:
        self._watching = None
        if not self.flow.read_paused or self.transport.is_closing():
            return
        if has_left(self.transport):
            self.transport.abort()
        else:
            self.watch_peer()

    # ---- the other direction

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.rules_.write_timeout_s, self._reset)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _reset(self) -> None:
        reset(self.transport)

    # ---- refusals

    def send_400_response(self, msg: str) -> None:
        self._refuse(
            400, InvalidRequest("malformed HTTP request", hint="send a valid HTTP/1.1 request")
        )

    def _unsupported_upgrade_warning(self) -> None:
        # An upgrade that a client asks for is not worth a warning in the log.
        pass

    def _wait_for_headers(self) -> None:
        self._patience = self.loop.call_later(self.rules_.header_timeout_s, self._too_slow)

    def _too_slow(self) -> None:
        self._patience = None
        if self.flow.read_paused:
            # The rest may be here already, behind requests that are answered first.
            self._wait_for_headers()
            return
        if not self._heading:
            self._refused = True
            self.transport.close()
            return
        seconds = f"{self.rules_.header_timeout_s:g}"
        self._refuse(
            408,
            InvalidRequest(
                f"the headers were not complete within {seconds} s", hint="send them without pauses"
            ),
        )

    def _refuse_head(self) -> None:
        details: dict[str, Detail] = {"limit": self.rules_.max_header_bytes}
        self._refuse(
            431,
            PayloadTooLarge(
                f"the headers exceed {self.rules_.max_header_bytes} bytes "
                f"or {self.rules_.max_headers} lines",
                hint="send fewer or shorter headers",
                **details,
            ),
        )

    def _refuse(self, status: int, error: SandkastenError) -> None:
        if self._refused:
            return
        self._refused = True
        self._rest()
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            # The response to an earlier request is under way, so no error can be sent.
            self.transport.abort()
            return
        request_id = "req_" + secrets.token_hex(8)
        log_request(
            method=None,
            route=None,
            status=status,
            seconds=0.0,
            request_id=request_id,
            key_id=None,
            tenant=None,
            code=error.code,
        )
        body = as_json(body_of(error, request_id))
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (status, _PHRASES[status], len(body), body)
        )
        # Read and drop for a moment: closing at once would reset the connection, and the client
        # could not read the error.
        self._patience = self.loop.call_later(LINGER_S, self.transport.abort)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def eof_received(self) -> None:
        if self._refused:
            self.transport.close()

    def _rest(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _cancel(self) -> None:
        self._rest()
        for timer in (self._stalled, self._watching):
            if timer is not None:
                timer.cancel()
        self._stalled = self._watching = None
