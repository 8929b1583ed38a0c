"""A server that answers every request with the same bytes, for ever or not at all."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_LARGE = 1 << 16


@dataclass(frozen=True)
class HostileAnswer:
    """`start`, then `piece` without end; the connection stays open."""

    start: bytes = b""
    piece: bytes = b""
    pause_s: float = 0.0
    """Before each piece."""


def redirect(status: int, location: str) -> HostileAnswer:
    head = f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nLocation: {location}\r\n\r\n"
    return HostileAnswer(head.encode())


_BOMB = gzip.compress(bytes(16 << 20))
_JSON = b"Content-Type: application/json\r\n"
_CHUNK = b"%x\r\n" % _LARGE + b"x" * _LARGE + b"\r\n"


def large_answers() -> dict[str, HostileAnswer]:
    ok, refused = b"HTTP/1.1 200 OK\r\n" + _JSON, b"HTTP/1.1 500 X\r\n" + _JSON
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    return {
        "a line of the head": HostileAnswer(ok + b"X-Long: ", b"x" * _LARGE),
        "lines of the head": HostileAnswer(ok, b"X-Line: y\r\n" * 1000),
        "a body": HostileAnswer(ok + chunked, _CHUNK),
        "a body without a length": HostileAnswer(ok + b"\r\n", b"x" * _LARGE),
        "a refusal": HostileAnswer(refused + chunked, _CHUNK),
        "a compressed body": HostileAnswer(
            ok + b"Content-Encoding: gzip\r\n" + chunked, b"%x\r\n%b\r\n" % (len(_BOMB), _BOMB)
        ),
        "trailers": HostileAnswer(ok + chunked + b"0\r\n", b"X-Line: y\r\n" * 1000),
    }


def slow_answers() -> dict[str, HostileAnswer]:
    """Return answers that fill no memory."""
    head = b"HTTP/1.1 %d X\r\n" + _JSON + b"Content-Length: 1000000\r\n\r\n"
    chunked = b"HTTP/1.1 200 OK\r\n" + _JSON + b"Transfer-Encoding: chunked\r\n\r\n"
    return {
        "nothing": HostileAnswer(),
        "half a head": HostileAnswer(b"HTTP/1.1 200 OK\r\nX-"),
        "a head, a byte at a time": HostileAnswer(b"HTTP/1.1 200 OK\r\nX-", b"x", 0.02),
        "a body, a byte at a time": HostileAnswer(head % 200, b"[", 0.02),
        "a refusal, a byte at a time": HostileAnswer(head % 500, b"[", 0.02),
        "an extension of a chunk": HostileAnswer(chunked + b"1;", b"x" * _LARGE, 0.02),
        "to go on": HostileAnswer(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
    }


@dataclass
class HostileServer:
    port: int = 0
    sent_bytes: int = 0
    """The most on one connection."""
    requests: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def hostile_server(answer: HostileAnswer) -> AsyncIterator[HostileServer]:
    server = HostileServer()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server.requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer.start)
            sent_bytes = 0
            while answer.piece:
                await asyncio.sleep(answer.pause_s)
                writer.write(answer.piece)
                await writer.drain()
                sent_bytes += len(answer.piece)
                server.sent_bytes = max(server.sent_bytes, sent_bytes)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
