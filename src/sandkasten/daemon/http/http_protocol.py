"""HTTP connections that nobody can hold open by doing nothing.

uvicorn's protocol with what it lacks: a time for the headers, a bound for their size and number,
a time for a reader who reads nothing, and an end for whoever still sends after the answer. Knows
no route and no key; what it refuses itself is answered in the one error body and closed.
"""

from __future__ import annotations

import secrets
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sandkasten.api.http_limits import HttpLimits
from sandkasten.api.problems import body_of
from sandkasten.api.response.json_response import as_json
from sandkasten.errors import InvalidRequest, PayloadTooLarge, SandkastenError

if TYPE_CHECKING:
    import asyncio

    from sandkasten.errors import Detail

# After the answer, for what was on its way already; it is read and thrown away.
LINGER_S: Final = 2.0
# Up to here copying costs less than a second system call.
_JOINED_BYTES: Final = 64 * 1024
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_PHRASES: Final = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
}


class _Joined:
    """What one answer is written to: its headers go out with the first piece of its body."""

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            # Whoever asked has left; uvloop would take it for a mistake of ours.
            self._held = b""
        elif self._held is None:
            self._held = data
            # An answer whose body is not there yet must not keep its headers waiting.
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


def guarded(rules: HttpLimits) -> type[HttpToolsProtocol]:
    """The protocol class with these rules, for uvicorn's `http`."""

    class Guarded(GuardedProtocol):
        rules_ = rules

    return Guarded


class GuardedProtocol(HttpToolsProtocol):
    rules_: ClassVar[HttpLimits] = HttpLimits()

    _heading = False
    """In the midst of a request's headers."""
    _whole = True
    """The request at hand has come to its end."""
    _refused = False
    _upgraded = False
    _head_bytes = 0
    _patience: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    # ---- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Its lines hold whole URLs, and what people put there by mistake.
        self.access_log = False
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        heading = self._heading
        super().data_received(data)
        if heading and self._heading:
            # The parser keeps a half-read header; nobody else counts what that takes.
            self._head_bytes += len(data)
            if self._head_bytes > self.rules_.max_header_bytes:
                self._refuse_head()
        elif self._idle and self._patience is None and self.timeout_keep_alive_task is None:
            # Empty lines between two requests: they end the one wait, so they begin the other.
            self._wait_for_headers()

    def handle_websocket_upgrade(self) -> None:
        self._cancel()
        if not self._refused:
            # From here on the connection is another protocol's.
            self._upgraded = True
            super().handle_websocket_upgrade()

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

    def on_headers_complete(self) -> None:
        self._heading = False
        self._rest()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.rules_.max_header_bytes or len(self.headers) > self.rules_.max_headers:
            self._refuse_head()
        if not self._refused:
            super().on_headers_complete()
            if self.cycle is not None:
                # Its task has not begun to run.
                self.cycle.transport = _Joined(self.transport, self.loop)  # type: ignore[assignment]

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
        """At once, and without the rest: the kernel would keep it for somebody who never reads."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()

    # ---- refusals

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, InvalidRequest("this is no HTTP request", hint="speak HTTP/1.1"))

    def _unsupported_upgrade_warning(self) -> None:
        # A client's odd wish is not worth a warning in our log.
        pass

    def _wait_for_headers(self) -> None:
        self._patience = self.loop.call_later(self.rules_.header_timeout_s, self._too_slow)

    def _too_slow(self) -> None:
        self._patience = None
        if not self._heading:
            self._refused = True
            self.transport.close()
            return
        seconds = f"{self.rules_.header_timeout_s:g}"
        self._refuse(
            408, InvalidRequest(f"the headers did not come within {seconds} s", hint="send them")
        )

    def _refuse_head(self) -> None:
        details: dict[str, Detail] = {"limit": self.rules_.max_header_bytes}
        self._refuse(
            431,
            PayloadTooLarge(
                f"the headers are over {self.rules_.max_header_bytes} bytes "
                f"or more than {self.rules_.max_headers}",
                hint="send fewer or shorter ones",
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
            # An answer to an earlier request is under way; nothing may come in between.
            self.transport.abort()
            return
        body = as_json(body_of(error, "req_" + secrets.token_hex(8)))
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (status, _PHRASES[status], len(body), body)
        )
        # What still comes is read and dropped for a moment: closing at once would reset the
        # connection, and the client would never read why.
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
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
