"""A conversation with a runner that is written beforehand and answered as a whole. Pure, no I/O.

For an engine that runs a command to its end and passes nothing in or out meanwhile: the runner
plays the script itself (`runner/src/runner/script.rs`). The answers are hostile input: they are
bounded by the caller before they are read, and decoded to a closed set here. Answers that end too
early raise SandboxLost, invalid ones ProtocolViolation.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import ProtocolViolation, SandboxLost, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.wire.call import SEND_FRAME_BYTES, OutputChunk
from sandkasten_runtime.wire.frame_codec import (
    CHUNK_HEADER_BYTES,
    FROM_RUNNER,
    Decoder,
    Frame,
    Kind,
    decode_chunk_head,
    encode,
    header,
)
from sandkasten_runtime.wire.json_bodies import decode_body, encode_body
from sandkasten_runtime.wire.runner_errors import error_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A frame of a kind that no client sends: what follows waits until all streams have ended.
_WAIT: Final = b"\x00\x00\x00\x05\x00\x00\x00\x00\x00"


class Script:
    """Collects the frames of a client. Credit is paid where the script is played."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self._streams = 0

    def call(
        self, verb: str, fields: Mapping[str, object] | None = None, data: bytes | None = None
    ) -> int:
        """Add a request, followed by `data` and its end. Return its stream."""
        self._streams += 1
        stream = self._streams
        self.parts.append(encode(Kind.OPEN, stream, encode_body({"verb": verb, **(fields or {})})))
        if data is not None:
            view = memoryview(data)
            for start in range(0, len(view), SEND_FRAME_BYTES):
                piece = view[start : start + SEND_FRAME_BYTES]
                self.parts += [header(Kind.DATA, stream, len(piece)), piece]
            self.parts.append(encode(Kind.END, stream))
        return stream

    def cancel(self, stream: int) -> None:
        """Cancel a request, right after what was added before has been handled."""
        self.parts.append(encode(Kind.CANCEL, stream))

    def wait(self) -> None:
        """Wait until every request before this has been answered."""
        self.parts.append(_WAIT)


@dataclass(slots=True)
class Answer:
    """The answer to one request of a script."""

    data: bytearray = field(default_factory=bytearray)
    chunks: list[OutputChunk] = field(default_factory=list)
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The first event of each name."""
    result: dict[str, Any] | None = None
    error: SandkastenError | None = None

    def body(self) -> dict[str, Any]:
        """Return the result. Raise the runner's error, or SandboxLost if there is neither."""
        if self.error is not None:
            raise self.error
        if self.result is None:
            raise SandboxLost(
                "the sandbox ended before it had answered everything",
                hint="it was killed from outside, or its engine was; run it again",
            )
        return self.result


class Answers:
    """The answers to a script, by stream."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._answers: dict[int, Answer] = {}
        decoder = Decoder(FROM_RUNNER)
        for piece in pieces:
            for frame in decoder.feed(piece):
                self._take(frame)

    def __getitem__(self, stream: int) -> Answer:
        return self._answers.get(stream) or Answer()

    def _take(self, frame: Frame) -> None:
        if frame.kind in (Kind.HELLO, Kind.CREDIT) or not frame.stream:
            return
        answer = self._answers.setdefault(frame.stream, Answer())
        if frame.kind is Kind.DATA:
            answer.data += frame.body
        elif frame.kind is Kind.CHUNK:
            head = decode_chunk_head(frame.body)
            data = bytes(frame.body[CHUNK_HEADER_BYTES:])
            answer.chunks.append(OutputChunk(head.seq, head.offset, head.source, data))
        elif frame.kind is Kind.EVENT:
            body = decode_body(frame.body, "an EVENT frame")
            answer.events.setdefault(str(body.get("event")), body)
        elif answer.result is not None or answer.error is not None:
            raise ProtocolViolation(f"stream {frame.stream} was answered twice")
        elif frame.kind is Kind.RESULT:
            answer.result = decode_body(frame.body, "a RESULT frame")
        else:
            body = decode_body(frame.body, "an ERROR frame")
            code, message = str(body.get("code")), str(body.get("message") or "")
            answer.error = error_for(code, message, "a request", errno=body.get("errno"))
