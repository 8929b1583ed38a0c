"""Servers of HTTP/2 over TLS: one that answers, and some that keep their clients busy."""

from __future__ import annotations

import contextlib
import json
import socketserver
import ssl
from typing import TYPE_CHECKING, Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PLAIN_FRAMES = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")


class Http2Server(socketserver.ThreadingTCPServer):
    """Gives each connection to a function, when it has the protocol of its client."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        chain: Path,
        serve: Callable[[Http2Server, ssl.SSLSocket], None],
        protocols: tuple[str, ...] = ("h2",),
    ) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.seen: list[dict[str, Any]] = []
        self.connections = 0
        self._serve = serve
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(chain)
        self._context.set_alpn_protocols(list(protocols))

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def finish_request(self, request: Any, client_address: Any) -> None:
        del client_address
        self.connections += 1
        with (
            contextlib.suppress(OSError, h2.exceptions.ProtocolError),
            self._context.wrap_socket(request, server_side=True) as client,
        ):
            self._serve(self, client)


def answer(server: Http2Server, client: ssl.SSLSocket) -> None:
    """Answer each request with what it said; `/large` with a million bytes."""
    connection = h2.connection.H2Connection(config=_PLAIN_FRAMES)
    connection.initiate_connection()
    client.sendall(connection.data_to_send())
    requests: dict[int, dict[str, Any]] = {}
    waiting: dict[int, bytes] = {}
    while data := client.recv(65536):
        for event in connection.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                requests[event.stream_id] = {"headers": dict(event.headers), "body": 0}
            elif isinstance(event, h2.events.DataReceived):
                requests[event.stream_id]["body"] += len(event.data)
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                request = requests.pop(event.stream_id)
                server.seen.append(request)
                path = request["headers"][":path"]
                body = json.dumps(request).encode()
                status, token = "200", request["headers"].get("authorization", "")
                if path == "/large":
                    body = b"x" * 1_000_000
                fields = [(":status", status), ("x-echo", token)]
                connection.send_headers(event.stream_id, fields)
                waiting[event.stream_id] = body
            elif isinstance(event, h2.events.StreamReset):
                requests.pop(event.stream_id, None)
                waiting.pop(event.stream_id, None)
        _send(connection, waiting)
        client.sendall(connection.data_to_send())


def _send(connection: h2.connection.H2Connection, waiting: dict[int, bytes]) -> None:
    for stream in list(waiting):
        while waiting[stream]:
            room = min(
                connection.local_flow_control_window(stream), connection.max_outbound_frame_size
            )
            if not room:
                break
            connection.send_data(stream, waiting[stream][:room])
            waiting[stream] = waiting[stream][room:]
        if not waiting[stream]:
            connection.send_headers(stream, [("x-end", "done")], end_stream=True)
            del waiting[stream]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def hostile(frames: Callable[[], Iterator[bytes]]) -> Callable[[Http2Server, ssl.SSLSocket], None]:
    """Return what answers the first bytes of a client with frames until it leaves."""

    def serve(_: Http2Server, client: ssl.SSLSocket) -> None:
        client.recv(65536)
        client.sendall(frame(4, 0, 0, b""))
        for piece in frames():
            client.sendall(piece)
        while client.recv(65536):
            pass

    return serve


def _again(piece: bytes, before: bytes = b"") -> Callable[[], Iterator[bytes]]:
    def frames() -> Iterator[bytes]:
        yield before
        many = piece * max(1, 60_000 // len(piece))
        while True:
            yield many

    return frames


_OK = b"\x88"
_LONG_FIELD = b"\x40\x01a\x7f\x81\x1e" + b"x" * 4000
# The name and value above, from the table, which is 4 KB for each byte.
_INDEXED = b"\xbe" * 16_000
ENDLESS: dict[str, Callable[[], Iterator[bytes]]] = {
    "pings": _again(frame(6, 0, 0, bytes(8))),
    "settings": _again(frame(4, 0, 0, b"\x00\x04\x00\x01\x00\x00")),
    "empty settings": _again(frame(4, 0, 0, b"")),
    "windows": _again(frame(8, 0, 0, b"\x00\x00\x00\x01")),
    "priorities": _again(frame(2, 0, 1, b"\x00\x00\x00\x00\x10")),
    "unknown frames": _again(frame(99, 0, 0, b"")),
    "empty data": _again(frame(0, 0, 1, b""), frame(1, 4, 1, _OK)),
    "data of one byte": _again(frame(0, 0, 1, b"x"), frame(1, 4, 1, _OK)),
    "padding": _again(frame(0, 8, 1, b"\xff" + bytes(255)), frame(1, 4, 1, _OK)),
    "continuations": _again(frame(9, 0, 1, b"\x00\x01a\x7f\x80\x01" + b"x" * 255),
                            frame(1, 0, 1, _OK)),
    "early answers": _again(frame(1, 4, 1, b"\x08\x03103")),
    "resets": _again(frame(3, 0, 1, b"\x00\x00\x00\x08") + frame(1, 4, 1, _OK)),
    "pushes": _again(frame(5, 4, 1, b"\x00\x00\x00\x02\x82\x87\x84")),
    "a head of a large table": _again(frame(1, 4, 1, _OK + _LONG_FIELD + _INDEXED)),
    "a frame that is too long": _again(frame(0, 0, 1, b"x" * 100_000)),
}  # fmt: skip
