"""Speak HTTP/1.1 to a daemon over a socket, with blocking calls: one request per connection.

For commands that take less time than the import of an HTTP library and an event loop. There are no
retries, no TLS and no proxy; `client/http/connection.py` has them. Failures are OSError, a response
that breaks off is Incomplete, and an invalid number in it is ValueError.
"""

from __future__ import annotations

# Not from typing, which takes longer to import than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from socket import socket

_PIECE = 1 << 16
_MAX_HEAD = 1 << 16


class Incomplete(OSError):
    """The daemon closed the connection before the answer was complete."""


class PlainAnswer:
    """An answer whose head has arrived; `pieces` and `read` wait for its body."""

    def __init__(self, connection: socket) -> None:
        self._connection = connection
        self._rest = b""
        head = self._until(b"\r\n\r\n", _MAX_HEAD)
        lines = head.split(b"\r\n")
        status = lines[0].split(b" ", 2)
        if len(status) < 2 or not status[0].startswith(b"HTTP/1.") or not status[1].isdigit():
            raise Incomplete("the answer is not HTTP")
        self.status = int(status[1])
        self.headers: dict[bytes, bytes] = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            self.headers[name.strip().lower()] = value.strip()

    def read(self) -> bytes:
        """Return the whole body."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        if b"chunked" in self.headers.get(b"transfer-encoding", b"").lower():
            while size := int(self._until(b"\r\n", _MAX_HEAD).split(b";")[0], 16):
                yield from self._exactly(size)
                self._until(b"\r\n", 2)
            return
        length = self.headers.get(b"content-length")
        if length is not None:
            yield from self._exactly(int(length))
            return
        if self._rest:
            yield self._rest
        while piece := self._connection.recv(_PIECE):
            yield piece

    def _until(self, end: bytes, most: int) -> bytes:
        while (at := self._rest.find(end)) < 0:
            if len(self._rest) > most:
                raise Incomplete("the answer is not HTTP")
            self._rest += self._more()
        found, self._rest = self._rest[:at], self._rest[at + len(end) :]
        return found

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size:
            if not self._rest:
                self._rest = self._more()
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            yield piece

    def _more(self) -> bytes:
        piece = self._connection.recv(_PIECE)
        if not piece:
            raise Incomplete("the connection was closed")
        return piece


def send(
    connection: socket,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
) -> None:
    """Send one request. The daemon closes the connection after its response."""
    head = [f"{method} {path} HTTP/1.1", "Connection: close"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    connection.sendall("\r\n".join([*head, "", ""]).encode("latin-1") + (body or b""))
