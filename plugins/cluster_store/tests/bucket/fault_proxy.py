"""A proxy in front of an S3 server that fails as a test says. One request for each connection."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
Kind = Literal["answer", "cut", "reset", "lose_answer", "hang", "hold", "hold_answer", "spoil"]


@dataclass
class Fault:
    """What becomes of the next `times` requests of a method.

    answer: an error of the server. cut: half of the answer. reset: no answer, and the server sees
    nothing. lose_answer: the server does it, and the client is not told. hang: no answer until the
    client gives up, and the server sees it then. hold: as usual, after `go` is set. hold_answer:
    the server does it, and the client is told after `go` is set. spoil: the server gets another
    content.
    """

    method: str
    kind: Kind
    times: int = 1
    status: int = 503
    code: str = ""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class FaultProxy:
    """`async with FaultProxy(port) as proxy:`."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._faults: list[Fault] = []
        self.seen: list[str] = []
        """The method of every request."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._serving: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    def add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        self._faults.clear()

    def _next(self, method: str) -> Fault | None:
        for fault in self._faults:
            if fault.method == method and fault.times > 0:
                fault.times -= 1
                return fault
        return None

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._one(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                found = _LENGTH.search(head)
                body = await reader.readexactly(int(found[1]) if found else 0)
                method = head.partition(b" ")[0].decode()
                self.seen.append(method)
                await self._answer(self._next(method), head, body, reader, writer)
        finally:
            writer.close()

    async def _answer(
        self,
        fault: Fault | None,
        head: bytes,
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        change: Callable[[bytes], bytes] = bytes
        if fault is not None:
            fault.reached.set()
            if fault.kind == "answer":
                text = f"<Error><Code>{fault.code}</Code></Error>".encode() if fault.code else b""
                writer.write(
                    b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
                    % (fault.status, len(text), text)
                )
                await writer.drain()
                return
            if fault.kind == "reset":
                return
            if fault.kind == "hang":
                await reader.read()
            if fault.kind == "hold":
                await fault.go.wait()
            if fault.kind == "spoil":
                body = body[:-1] + bytes([body[-1] ^ 1])
            if fault.kind == "cut":
                change = _half
        answer = await self._forwarded(head, body)
        if fault is not None:
            fault.done.set()
            if fault.kind in ("lose_answer", "hang"):
                return
            if fault.kind == "hold_answer":
                await fault.go.wait()
        writer.write(change(answer))
        await writer.drain()

    async def _forwarded(self, head: bytes, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            first, _, rest = head.partition(b"\r\n")
            writer.write(first + b"\r\nConnection: close\r\n" + rest + body)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()


def _half(answer: bytes) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n" + body[: len(body) // 2]
