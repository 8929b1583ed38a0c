"""A proxy in front of an engine's socket that forwards only listed calls.

Each connection is inspected request by request until one is upgraded to a stream. A call that is
not listed is answered with 403 and remembered. The proxy has its own threads.
"""

from __future__ import annotations

import re
import socket
import socketserver
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_VERSION = re.compile(r"/v\d+\.\d+(?=/)")
_NO = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: 23\r\n"
    b'Connection: close\r\n\r\n{"message":"forbidden"}'
)


def pattern(call: str) -> re.Pattern[str]:
    """Return the pattern of a documented call: `POST /containers/{id}/start`."""
    parts = re.split(r"\{[a-z]+\}", call)
    # An image's name has slashes of its own.
    return re.compile("[^ ]+".join(re.escape(part) for part in parts) + r"\Z")


@dataclass
class Proxy:
    upstream: Path
    calls: Iterable[str]
    seen: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)

    @contextmanager
    def at(self, path: Path) -> Iterator[None]:
        proxy, allowed = self, [pattern(call) for call in self.calls]

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with socket.socket(socket.AF_UNIX) as engine, suppress(OSError):
                    engine.connect(str(proxy.upstream))
                    back = threading.Thread(target=_pour, args=(engine, self.connection))
                    back.start()
                    with suppress(OSError):
                        proxy._requests(self.rfile, self.connection, engine, allowed)
                        engine.shutdown(socket.SHUT_WR)
                    back.join()

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = False

        with Server(str(path), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()

    def _requests(
        self,
        requests: io.BufferedIOBase,
        client: socket.socket,
        engine: socket.socket,
        allowed: list[re.Pattern[str]],
    ) -> None:
        while head := _head(requests):
            method, target, *_ = head.decode("latin-1").split(" ", 2)
            call = f"{method} {_VERSION.sub('', target.partition('?')[0], count=1)}"
            if not any(one.match(call) for one in allowed):
                self.refused.append(call)
                client.sendall(_NO)
                return
            self.seen.add(call)
            engine.sendall(head)
            lower = head.lower()
            length = re.search(rb"\r\ncontent-length: (\d+)", lower)
            if length is not None:
                engine.sendall(requests.read(int(length[1])))
            if b"\r\nupgrade:" in lower or b"\r\ntransfer-encoding:" in lower:
                # A stream, or a body whose end only a whole parser knows: no request comes after.
                while data := requests.read1(1 << 16):
                    engine.sendall(data)
                return


def _head(requests: io.BufferedIOBase) -> bytes:
    lines: list[bytes] = []
    while line := requests.readline(1 << 16):
        lines.append(line)
        if line == b"\r\n":
            return b"".join(lines)
    return b""


def _pour(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
