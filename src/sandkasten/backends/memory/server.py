"""The runner's side of the protocol, over one in-memory connection.

Frames and credit only; what a verb means is in the `verbs_*` modules. A client that breaks the
protocol loses its connection, as with the real runner.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from sandkasten.backends.memory.refusal import Refusal
from sandkasten.backends.memory.request import Request
from sandkasten.errors import ProtocolViolation
from sandkasten.model.sandbox.cell_spec import RUNNER_ID, USER_ID
from sandkasten.wire.frame_codec import (
    FROM_CLIENT,
    GENERATION,
    INITIAL_CREDIT,
    MAX_CREDIT,
    Decoder,
    Frame,
    Kind,
    decode_credit,
    encode,
    encode_chunk,
    encode_credit,
)
from sandkasten.wire.json_bodies import decode_body, encode_body
from sandkasten.wire.outbox import Outbox

if TYPE_CHECKING:
    from sandkasten.backends.memory.machine import Machine
    from sandkasten.backends.memory.output import Chunk
    from sandkasten.backends.memory.pipe import MemoryStream

MAX_STREAMS = 256
MAX_CONNECTIONS = 64
_RECEIVE_BYTES = 256 * 1024
_SEND_BYTES = 64 * 1024

Verb: TypeAlias = Callable[["Machine", Request, "ServerStream"], Awaitable[dict[str, Any]]]


class ServerStream:
    """One open request: its data in both directions, each within its credit."""

    def __init__(self, number: int, outbox: Outbox) -> None:
        self.number = number
        self._outbox = outbox
        self._credit = INITIAL_CREDIT
        self._allowance = INITIAL_CREDIT
        self._inbox: deque[bytes] = deque()
        self._ended = False
        self._changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def receive(self) -> bytes:
        """The next data of the client, b"" after its END."""
        while not self._inbox:
            if self._ended:
                return b""
            self._changed.clear()
            await self._changed.wait()
        data = self._inbox.popleft()
        self._allowance += len(data)
        self._outbox.post(encode_credit(self.number, len(data)))
        return data

    async def event(self, name: str, **fields: object) -> None:
        body = encode_body({"event": name, **fields})
        await self._outbox.send(encode(Kind.EVENT, self.number, body))

    async def data(self, data: bytes) -> None:
        for start in range(0, len(data), _SEND_BYTES):
            await self._paid(Kind.DATA, data[start : start + _SEND_BYTES])

    async def chunk(self, chunk: Chunk) -> None:
        body = encode_chunk(chunk.seq, chunk.offset, chunk.source, chunk.data)
        await self._paid(Kind.CHUNK, body)

    async def _paid(self, kind: Kind, body: bytes) -> None:
        while self._credit < len(body):
            self._changed.clear()
            await self._changed.wait()
        self._credit -= len(body)
        await self._outbox.send(encode(kind, self.number, body))

    # ---- from the connection; nothing here waits

    def on_data(self, data: bytes) -> None:
        self._allowance -= len(data)
        if self._allowance < 0 or self._ended:
            raise ProtocolViolation("the runner sent more data than was requested")
        if data:
            self._inbox.append(data)
            self._changed.set()

    def on_end(self) -> None:
        self._ended = True
        self._changed.set()

    def on_credit(self, amount: int) -> None:
        self._credit = min(self._credit + amount, MAX_CREDIT)
        self._changed.set()


class Connection:
    def __init__(self, stream: MemoryStream, machine: Machine, verbs: Mapping[str, Verb]) -> None:
        self._stream = stream
        self._machine = machine
        self._verbs = verbs
        self._outbox = Outbox(stream, lambda error: None)
        self._streams: dict[int, ServerStream] = {}

    async def run(self) -> None:
        """Serve until the client or the place goes."""
        self._machine.connections += 1
        self._machine.farewells.add(self.say_ending)
        try:
            await self._serve()
        except (ProtocolViolation, OSError):
            # The runner answers a broken client with nothing but the end of the connection.
            return
        finally:
            self._machine.connections -= 1
            self._machine.farewells.discard(self.say_ending)
            tasks = [one.task for one in self._streams.values() if one.task is not None]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self._outbox.aclose()
            await self._stream.aclose()

    async def say_ending(self, reason: str) -> None:
        body = encode_body({"event": "ending", "reason": reason})
        with suppress(OSError):
            await self._outbox.send(encode(Kind.EVENT, 0, body))

    async def _serve(self) -> None:
        hello = {
            "generation": GENERATION,
            "version": "memory",
            "uid": RUNNER_ID,
            "user_uid": USER_ID,
            "shell": "/bin/sh",
            "features": ["memory"],
        }
        await self._outbox.send(encode(Kind.HELLO, 0, encode_body(hello)))
        decoder = Decoder(FROM_CLIENT)
        while data := await self._stream.receive(_RECEIVE_BYTES):
            for frame in decoder.feed(data):
                self._deliver(frame)

    def _deliver(self, frame: Frame) -> None:
        if frame.kind is Kind.OPEN:
            self._open(frame)
            return
        stream = self._streams.get(frame.stream)
        if stream is None:
            return
        if frame.kind is Kind.DATA:
            stream.on_data(bytes(frame.body))
        elif frame.kind is Kind.END:
            stream.on_end()
        elif frame.kind is Kind.CREDIT:
            stream.on_credit(decode_credit(frame.body))
        elif stream.task is not None:
            stream.task.cancel()

    def _open(self, frame: Frame) -> None:
        if self._machine.ending:
            return
        body = decode_body(frame.body, "a request")
        if frame.stream == 0 or frame.stream in self._streams:
            raise ProtocolViolation("the stream id is in use")
        if len(self._streams) >= MAX_STREAMS:
            self._error(frame.stream, "busy", "too many open streams")
            return
        self._machine.last_request = time.monotonic()
        stream = self._streams[frame.stream] = ServerStream(frame.stream, self._outbox)
        self._machine.asked += 1
        stream.task = asyncio.get_running_loop().create_task(self._answer(stream, body))
        stream.task.add_done_callback(self._answered)

    def _answered(self, _: asyncio.Task[None]) -> None:
        self._machine.asked -= 1

    async def _answer(self, stream: ServerStream, body: dict[str, Any]) -> None:
        name = body.get("verb")
        try:
            verb = self._verbs.get(name) if type(name) is str else None
            if verb is None:
                raise Refusal("unsupported", "this verb is not known")
            result = await verb(self._machine, Request(body), stream)
            await self._outbox.send(encode(Kind.RESULT, stream.number, encode_body(result)))
        except Refusal as refusal:
            self._error(stream.number, refusal.code, refusal.message)
        except asyncio.CancelledError:
            self._error(stream.number, "cancelled", "cancelled")
        except Exception:
            self._error(stream.number, "internal", "the fake runner has a defect")
            raise
        finally:
            del self._streams[stream.number]

    def _error(self, number: int, code: str, message: str) -> None:
        body = encode_body({"code": code, "message": message})
        self._outbox.post(encode(Kind.ERROR, number, body))
