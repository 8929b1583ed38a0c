"""One stream of a channel: the request, the response, and credit in both directions.

Knows frames and credit, not sockets: the channel's reading task calls the `on_*` methods, which
never wait. What is buffered for a slow consumer is bounded: data by the credit we granted, events
by `MAX_EVENT_BYTES`. One task may iterate while another sends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from sandkasten.errors import PayloadTooLarge, ProtocolViolation, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.wire.byte_streams import drop_descriptor
from sandkasten_runtime.wire.frame_codec import (
    BODY_LIMITS,
    CHUNK_HEADER_BYTES,
    INITIAL_CREDIT,
    MAX_CREDIT,
    Kind,
    decode_chunk_head,
    encode,
    encode_credit,
    header,
)
from sandkasten_runtime.wire.json_bodies import encode_body, from_bytes_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from sandkasten_runtime.wire.byte_streams import Buffer
    from sandkasten_runtime.wire.outbox import Outbox

# Large enough that the cost per frame is negligible, small enough that another request does not
# wait long behind one.
SEND_FRAME_BYTES = 256 * 1024
# Below this, copying header and body together is cheaper than a gather write of two parts.
_JOIN_BYTES = 32 * 1024
# Events carry no credit. A consumer that lets this much accumulate gets an overflow event.
MAX_EVENT_BYTES = 1024 * 1024
# The cost of one small waiting event beyond its content; it bounds floods of empty ones.
_EVENT_OVERHEAD = 512


@dataclass(frozen=True, slots=True)
class Data:
    data: bytes | bytearray


@dataclass(frozen=True, slots=True)
class CallEvent:
    """One event. `overflow` also stands for events dropped here because they were not read."""

    name: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OutputChunk:
    seq: int
    offset: int
    source: int
    data: bytes


Item: TypeAlias = Data | CallEvent | OutputChunk


class Call:
    """One call, created by `Channel.stream`. Entering opens the stream; leaving early cancels
    it.
    """

    __slots__ = (
        "_allowance",
        "_credit",
        "_descriptor",
        "_discard",
        "_end_sent",
        "_ended",
        "_error",
        "_event_bytes",
        "_fields",
        "_items",
        "_outbox",
        "_overflowed",
        "_owed",
        "_reader",
        "_register",
        "_result",
        "_sender",
        "_unregister",
        "_window",
        "stream",
        "verb",
    )

    def __init__(
        self,
        verb: str,
        fields: Mapping[str, object] | None,
        *,
        window: int,
        outbox: Outbox,
        register: Callable[[Call], int],
        unregister: Callable[[int], None],
        discard: bool = False,
    ) -> None:
        self.verb = verb
        self.stream = 0
        self._fields = fields
        self._outbox = outbox
        self._register = register
        self._unregister = unregister
        self._discard = discard
        self._window = max(window, INITIAL_CREDIT)
        self._allowance = self._window
        self._owed = 0
        self._credit = INITIAL_CREDIT
        self._descriptor: int | None = None
        self._items: deque[tuple[Item, int, int]] = deque()
        self._event_bytes = 0
        self._overflowed = False
        self._reader: asyncio.Future[None] | None = None
        self._sender: asyncio.Future[None] | None = None
        self._ended = False
        self._end_sent = False
        self._result: dict[str, Any] | None = None
        self._error: SandkastenError | None = None

    # ---- the caller's side

    @property
    def path(self) -> str | None:
        """Return the file that the request names first; None if it names none."""
        fields = self._fields or {}
        for name in ("path", "source", "cwd"):
            value = fields.get(name)
            if value is not None:
                return from_bytes_json(value, f"the {name} of a request")
        return None

    async def __aenter__(self) -> Call:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    async def open(self, data: Buffer | None = None) -> None:
        """Send OPEN, followed by all of `data` and END if data is given."""
        body = encode_body({"verb": self.verb, **(self._fields or {})})
        if len(body) > BODY_LIMITS[Kind.OPEN]:
            raise PayloadTooLarge(
                f"{self.verb}: the request is {len(body)} bytes long",
                hint=f"at most {BODY_LIMITS[Kind.OPEN]} fit into one request; write a file instead",
            )
        stream = self.stream = self._register(self)
        first = encode(Kind.OPEN, stream, body)
        if self._window > INITIAL_CREDIT:
            first += encode_credit(stream, self._window - INITIAL_CREDIT)
        try:
            if data is None:
                await self._outbox.send(first)
            elif len(data) <= _JOIN_BYTES:
                self._credit -= len(data)
                self._end_sent = True
                first += header(Kind.DATA, stream, len(data)) + data if data else b""
                await self._outbox.send(first + encode(Kind.END, stream))
            else:
                await self._outbox.send(first)
                await self.send(data)
                await self.end()
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Forget the stream; CANCEL it if it has not ended. Never waits; twice is fine."""
        if not self._ended and self.stream:
            self._outbox.post(encode(Kind.CANCEL, self.stream))
            self._unregister(self.stream)
        self._ended = True
        self._items.clear()
        descriptor = self.take_descriptor()
        if descriptor is not None:
            drop_descriptor(descriptor)
        self._wake()

    def take_descriptor(self) -> int | None:
        """Return the descriptor that arrived with an event, which the caller then owns."""
        descriptor, self._descriptor = self._descriptor, None
        return descriptor

    def check(self) -> None:
        """Raise the stream's error if it failed."""
        if self._error is not None:
            raise self._error

    async def send(self, data: Buffer) -> None:
        """Send all of `data`, waiting for credit. Raise the stream's error if it failed.

        After a RESULT the rest is dropped without an error: a command may end without reading its
        stdin.
        """
        view = memoryview(data).cast("B")
        position, size = 0, len(view)
        while position < size:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            if not self._credit:
                self._sender = asyncio.get_running_loop().create_future()
                try:
                    await self._sender
                finally:
                    self._sender = None
                continue
            length = min(size - position, self._credit, SEND_FRAME_BYTES)
            part = view[position : position + length]
            self._credit -= length
            position += length
            head = header(Kind.DATA, self.stream, length)
            if length <= _JOIN_BYTES:
                await self._outbox.send(head + part)
            else:
                await self._outbox.send(head, part)

    async def end(self) -> None:
        """Declare the end of the data. Twice is fine."""
        if not self._end_sent and not self._ended:
            self._end_sent = True
            await self._outbox.send(encode(Kind.END, self.stream))

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Item:
        while not self._items:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        item, cost, weight = self._items.popleft()
        if cost:
            self._grant(cost)
        elif weight:
            self._event_bytes -= weight
            self._overflowed = False
        return item

    async def result(self) -> dict[str, Any]:
        """Read to the end, dropping data and events, and return the RESULT."""
        async for _ in self:
            pass
        if self._result is None:
            raise ProtocolViolation(f"{self.verb}: the stream was closed before its result")
        return self._result

    # ---- the channel's side; nothing here waits

    def on_data(self, body: bytes | bytearray) -> None:
        self._keep(Data(body), len(body))

    def on_chunk(self, body: bytes | bytearray) -> None:
        seq, offset, source = decode_chunk_head(body)
        self._keep(OutputChunk(seq, offset, source, bytes(body[CHUNK_HEADER_BYTES:])), len(body))

    def _keep(self, item: Item, cost: int) -> None:
        self._allowance -= cost
        if self._allowance < 0:
            raise ProtocolViolation(f"{self.verb}: the runner sent more data than was requested")
        if self._discard or not cost:
            self._grant(cost)
        else:
            self._items.append((item, cost, 0))
            self._wake_reader()

    def on_event(self, body: dict[str, Any], size: int) -> None:
        name = body.get("event")
        if type(name) is not str:
            raise ProtocolViolation(f"{self.verb}: an event had no name")
        if self._discard:
            return
        weight = size + _EVENT_OVERHEAD
        if self._overflowed:
            return
        if self._event_bytes + weight <= MAX_EVENT_BYTES:
            self._event_bytes += weight
            self._items.append((CallEvent(name, body), 0, weight))
        else:
            # Until the consumer has read something, one overflow event stands for all lost ones.
            self._overflowed = True
            self._items.append((CallEvent("overflow", {"event": "overflow"}), 0, 0))
        self._wake_reader()

    def on_descriptor(self, descriptor: int) -> None:
        """Keep the descriptor of the event that is delivered next; there is one at most."""
        self._descriptor = descriptor

    def on_credit(self, amount: int) -> None:
        self._credit += amount
        if self._credit > MAX_CREDIT:
            raise ProtocolViolation(f"{self.verb}: the credit given passed {MAX_CREDIT}")
        if self._sender is not None and not self._sender.done():
            self._sender.set_result(None)

    def on_result(self, body: dict[str, Any]) -> None:
        self._result = body
        self._ended = True
        self._wake()

    def on_error(self, error: SandkastenError) -> None:
        """Fail the stream: the runner refused, or the channel is closed. Earlier data can still
        be read.
        """
        if not self._ended:
            self._error = error
            self._ended = True
            self._wake()

    def _grant(self, amount: int) -> None:
        self._owed += amount
        # In quarters of the window: fewer frames, and the runner never runs out of credit.
        if self._owed * 4 >= self._window and not self._ended:
            self._allowance += self._owed
            self._outbox.post(encode_credit(self.stream, self._owed))
            self._owed = 0

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake(self) -> None:
        self._wake_reader()
        if self._sender is not None and not self._sender.done():
            self._sender.set_result(None)
