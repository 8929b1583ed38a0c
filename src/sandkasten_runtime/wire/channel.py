"""One connection to a runner, shared by any number of concurrent calls.

The channel owns its stream and one reading task, which never waits for a consumer and ends in
`aclose()`. Knows no verbs. If the stream ends, every pending call raises SandboxLost; if the runner
violates the protocol, ProtocolViolation. In both cases the channel stays closed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from sandkasten.errors import (
    Busy,
    Cancelled,
    ProtocolViolation,
    SandboxLost,
    SandkastenError,
)
from sandkasten_runtime.wire.byte_streams import Descriptors, Handing, InPlace, drop_descriptor
from sandkasten_runtime.wire.call import Call
from sandkasten_runtime.wire.frame_codec import (
    DESCRIPTORS,
    FROM_RUNNER,
    INITIAL_CREDIT,
    MAX_STREAM,
    MIB,
    OBSERVE,
    Decoder,
    Frame,
    Kind,
    decode_credit,
)
from sandkasten_runtime.wire.json_bodies import decode_body
from sandkasten_runtime.wire.messages import Hello, decode_hello
from sandkasten_runtime.wire.outbox import Outbox
from sandkasten_runtime.wire.runner_errors import error_for, printable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sandkasten_runtime.wire.byte_streams import ByteStream

observing: ContextVar[bool] = ContextVar("observing", default=False)
"""Whether the caller only looks: its requests do not extend the life of the sandbox."""
DEFAULT_WINDOW = 4 * MIB
# Small, because bytes received here are copied once more; large bodies are received in place.
RECEIVE_BYTES = 64 * 1024
# The last output of a stopping engine or of a runner that has ended: a few lines, then the end of
# the stream.
_LAST_WORDS_S, _LAST_WORDS_PIECES = 1.0, 16
# A runner that always has data must not block the loop.
_RECEIVES_PER_TURN = 16
# Thousands of small frames fit in a few receives, and each is parsed.
_FRAMES_PER_TURN = 64


class Channel:
    """One connection. `Channel.open` takes over the stream, even if it fails."""

    hello: Hello

    def __init__(self, stream: ByteStream, hello: Hello, decoder: Decoder) -> None:
        """Called by `open` only: the hello has been read, and `decoder` is positioned after it."""
        self.hello = hello
        self._stream = stream
        self._decoder = decoder
        self._calls: dict[int, Call] = {}
        self._next = 1
        self._failure: SandkastenError | None = None
        self._carrier = stream if isinstance(stream, Descriptors) else None
        self._asked: set[int] = set()
        """Streams that may still get a descriptor, whether or not their calls are forgotten."""
        self.passes_descriptors = (
            self._carrier is not None
            and self._carrier.same_kernel
            and DESCRIPTORS in hello.features
        )
        """Whether the runner can pass an open file. Cleared if one was lost on the way."""
        self.ending: str | None = None
        """Why the runner is about to end, once it has announced it: idle or lifetime."""
        self.explain: Callable[[SandboxLost], Awaitable[SandkastenError]] | None = None
        """Where the end of the stream does not prove the runner's end: returns the cause, asked
        later.
        """
        self._late: list[Frame] = []
        """Frames that were received outside the reading task, which delivers them."""
        self._outbox = Outbox(stream, self._send_failed)
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, stream: ByteStream, *, hello_timeout_s: float = 10.0) -> Channel:
        """Read the runner's hello. Raise SandboxLost or ProtocolViolation."""
        decoder = Decoder(FROM_RUNNER)
        try:
            async with asyncio.timeout(hello_timeout_s):
                return cls(stream, await _read_hello(stream, decoder), decoder)
        except TimeoutError as exc:
            await stream.aclose()
            raise SandboxLost(
                f"the runner did not send its hello within {hello_timeout_s:g} s",
                hint="the sandbox is dead or starved; destroy it and create a new one",
            ) from exc
        except OSError as exc:
            await stream.aclose()
            raise SandboxLost(f"the connection to the runner failed: {exc}") from exc
        except BaseException:
            await stream.aclose()
            raise

    @property
    def closed(self) -> bool:
        return self._failure is not None

    @property
    def cut_off(self) -> bool:
        """Return whether the connection ended other than by `aclose`."""
        return self._failure is not None and not isinstance(self._failure, Cancelled)

    def when_closed(self, tell: Callable[[], None]) -> None:
        """Call `tell` once, soon after the connection has ended for any reason."""
        self._reading.add_done_callback(lambda _: tell())

    async def wait_closed(self, timeout_s: float) -> bool:
        """Wait for the runner to close the connection. Return whether it did so in time."""
        await asyncio.wait({self._reading}, timeout=timeout_s)
        return self.closed

    async def call(
        self,
        verb: str,
        fields: Mapping[str, object] | None = None,
        *,
        data: bytes | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Send one request, followed by `data`, and return its RESULT. Raise the mapped error.

        Without an answer within `timeout_s` the call is cancelled and Busy is raised: it may only
        be slow.
        """
        call = self._new(verb, fields, INITIAL_CREDIT, discard=True)
        try:
            if timeout_s is None:
                return await _one(call, data)
            async with asyncio.timeout(timeout_s):
                return await _one(call, data)
        except SandboxLost as exc:
            if self.explain is None:
                raise
            raise await self.explain(exc) from exc
        except TimeoutError as exc:
            raise Busy(
                f"{verb}: no answer from the sandbox within {timeout_s:g} s",
                hint="it may be frozen or starved of CPU; try again or destroy it",
            ) from exc

    def stream(
        self,
        verb: str,
        fields: Mapping[str, object] | None = None,
        *,
        window: int = DEFAULT_WINDOW,
        descriptor: bool = False,
    ) -> Call:
        """Return a streaming call as an async context manager. `window` bounds unread data.

        With `descriptor` an event may bring one; requires `passes_descriptors`.
        """
        return self._new(verb, fields, window, discard=False, descriptor=descriptor)

    async def aclose(self) -> None:
        """Close the connection; pending calls raise Cancelled. Twice is fine."""
        self._fail(Cancelled("the connection to the sandbox was closed on this side"))
        if not self._reading.done():
            self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        await self._outbox.aclose()
        await self._stream.aclose()

    def _new(
        self,
        verb: str,
        fields: Mapping[str, object] | None,
        window: int,
        *,
        discard: bool,
        descriptor: bool = False,
    ) -> Call:
        if observing.get() and OBSERVE in self.hello.features:
            fields = {**(fields or {}), "observe": True}
        return Call(
            verb,
            fields,
            window=window,
            outbox=self._outbox,
            register=self._register_asking if descriptor else self._register,
            unregister=self._unregister,
            discard=discard,
        )

    def _register(self, call: Call) -> int:
        if self._failure is not None:
            raise _again(self._failure)
        if self._next > MAX_STREAM:
            raise Busy("this connection has used up its stream ids", hint="open another channel")
        stream = self._next
        # Ids are never reused, so a late frame of a forgotten stream is recognised by its number
        # alone.
        self._next += 1
        self._calls[stream] = call
        return stream

    def _register_asking(self, call: Call) -> int:
        stream = self._register(call)
        if self._carrier is not None:
            self._asked.add(stream)
            self._carrier.expect_descriptors(True)
        return stream

    def _unregister(self, stream: int) -> None:
        self._calls.pop(stream, None)

    async def _read(self) -> None:
        receive, feed, deliver = self._stream.receive, self._decoder.feed, self._deliver
        room, filled = self._decoder.room, self._decoder.filled
        into = self._stream.receive_into if isinstance(self._stream, InPlace) else None
        hand = self._stream.receive_or_hand if isinstance(self._stream, Handing) else None
        receives = 0
        try:
            while True:
                place = room() if into is not None else None
                if into is not None and place is not None:
                    count = await into(place)
                    if not count:
                        break
                    place.release()
                    whole = filled(count)
                    if whole is not None:
                        deliver(whole)
                else:
                    if hand is not None:
                        data = await hand(RECEIVE_BYTES, self._take)
                    else:
                        data = await receive(RECEIVE_BYTES)
                    if data == b"":
                        break
                    frames, self._late = self._late if data is None else feed(data), []
                    for count, frame in enumerate(frames, 1):
                        deliver(frame)
                        if count % _FRAMES_PER_TURN == 0:
                            await asyncio.sleep(0)
                receives += 1
                if receives % _RECEIVES_PER_TURN == 0:
                    await asyncio.sleep(0)
            self._fail(_lost("the runner closed the connection"))
        except OSError as exc:
            self._fail(_lost(f"the connection to the runner failed: {exc}"))
        except ProtocolViolation as exc:
            self._fail(_lost("the way to the runner ended") if await self._over_now() else exc)
        except asyncio.CancelledError:
            # The end of a loop cancels this task too, and without it no call gets an answer.
            self._fail(Cancelled("the connection to the sandbox was closed on this side"))
            raise
        finally:
            await self._stream.aclose()

    def _take(self, data: bytes) -> bool:
        """Deliver what arrived while the reading task waits; False if it has to go on itself."""
        frames = self._decoder.feed(data)
        if len(frames) > _FRAMES_PER_TURN:
            self._late = frames
            return False
        for frame in frames:
            self._deliver(frame)
        # A full receive means that more is waiting, and the task needs fewer turns for that.
        return len(data) < RECEIVE_BYTES and self._decoder.room() is None

    async def _over_now(self) -> bool:
        """Return whether the stream ends after invalid data, where an engine is in between: an
        engine that stops writes its own message in the middle of the runner's frames.
        """
        if self.explain is None:
            return False
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                for _ in range(_LAST_WORDS_PIECES):
                    if not await self._stream.receive(RECEIVE_BYTES):
                        return True
        except TimeoutError:
            return False
        except OSError:
            return True
        return False

    def _deliver(self, frame: Frame) -> None:
        kind, stream, body = frame
        call = self._calls.get(stream)
        if stream == 0 and kind is Kind.EVENT:
            self._announced(decode_body(body, "an event of the runner"))
        elif call is None:
            if kind is Kind.HELLO or not 0 < stream < self._next:
                raise ProtocolViolation(f"a {kind.name} frame came for a stream never opened")
            if stream in self._asked and kind in (Kind.EVENT, Kind.RESULT, Kind.ERROR):
                self._settle(stream, None, decode_body(body, "an answer of the runner"))
        elif kind is Kind.CHUNK:
            call.on_chunk(body)
        elif kind is Kind.DATA:
            call.on_data(body)
        elif kind is Kind.CREDIT:
            call.on_credit(decode_credit(body))
        elif kind is Kind.EVENT:
            event = decode_body(body, f"an event of {call.verb}")
            if stream in self._asked:
                self._settle(stream, call, event)
            call.on_event(event, len(body))
        elif kind is Kind.RESULT:
            call.on_result(decode_body(body, f"the result of {call.verb}"))
            del self._calls[stream]
            if stream in self._asked:
                self._settle(stream, None, {})
        elif kind is Kind.ERROR:
            call.on_error(_refusal(decode_body(body, f"the error of {call.verb}"), call))
            del self._calls[stream]
            if stream in self._asked:
                self._settle(stream, None, {})
        else:
            raise ProtocolViolation(f"a {kind.name} frame came in the middle of a connection")

    def _settle(self, stream: int, call: Call | None, body: dict[str, Any]) -> None:
        """Hand over the descriptor that came with the first answer of a stream, if one did."""
        self._asked.discard(stream)
        carrier = self._carrier
        if carrier is None:
            return
        if body.get("descriptor") is not None:
            descriptor = carrier.take_descriptor()
            if call is not None and descriptor is not None:
                call.on_descriptor(descriptor)
            elif descriptor is not None:
                drop_descriptor(descriptor)
        if not self._asked:
            carrier.expect_descriptors(False)

    def _announced(self, body: dict[str, Any]) -> None:
        reason = body.get("reason")
        if body.get("event") == "ending" and isinstance(reason, str):
            self.ending = reason

    def _send_failed(self, error: OSError) -> None:
        lost = _lost(f"the connection to the runner failed: {error}")
        if isinstance(error, BrokenPipeError | ConnectionResetError):
            # What the runner sent before it ended, such as why it ends, may not have been read yet.
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._give_up, lost)
        else:
            self._give_up(lost)

    def _give_up(self, lost: SandboxLost) -> None:
        self._fail(lost)
        self._reading.cancel()

    def _fail(self, error: SandkastenError) -> None:
        if self._failure is None:
            self._failure = error
            self._outbox.close()
            calls = list(self._calls.values())
            self._calls.clear()
            for call in calls:
                call.on_error(_again(error))


async def _one(call: Call, data: bytes | None) -> dict[str, Any]:
    try:
        await call.open(data)
        return await call.result()
    finally:
        call.leave()


async def _read_hello(stream: ByteStream, decoder: Decoder) -> Hello:
    while data := await stream.receive(RECEIVE_BYTES):
        frames = decoder.feed(data)
        if not frames:
            continue
        frame = frames[0]
        if frame.kind is not Kind.HELLO or frame.stream != 0 or len(frames) > 1:
            raise ProtocolViolation("the runner did not begin with a hello")
        return decode_hello(decode_body(frame.body, "the hello"))
    raise _lost("the runner closed the connection before it said hello")


def _refusal(body: dict[str, Any], call: Call) -> SandkastenError:
    code, message = body.get("code"), body.get("message")
    if type(code) is not str or type(message) is not str:
        raise ProtocolViolation(f"the error of {call.verb} had no code or no message")
    error = error_for(code, message, call.verb, errno=body.get("errno"))
    if isinstance(error, OSError) and (path := call.path) is not None:
        error.details["path"] = printable(path)
    return error


def _lost(what: str) -> SandboxLost:
    return SandboxLost(what, hint="the sandbox was killed, ran out of memory or expired")


def _again(error: SandkastenError) -> SandkastenError:
    """Return a copy: an exception raised in two tasks at once would collect both tracebacks."""
    return type(error)(error.message, hint=error.hint, **error.details)
