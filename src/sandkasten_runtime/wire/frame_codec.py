"""Frames: `u32be length, u8 kind, u32be stream, body`. Bodies are opaque here. Pure, no I/O.

A decoder holds at most one unfinished frame, whose length was checked against the limit of its kind
before any of the body was stored. Invalid input raises ProtocolViolation; the decoder and the
connection cannot be used afterwards.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sandkasten.errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1024 * 1024
INITIAL_CREDIT = MIB
MAX_CREDIT = 0xFFFF_FFFF
MAX_STREAM = 0xFFFF_FFFF
GENERATION = 4
# From this generation on a runner announces when its lease ends it.
SAYS_ENDING = 2
# From this generation on files can have attributes.
HAS_ATTRIBUTES = 4
# A feature in HELLO: `argv` with `shell` starts a process with the state of that shell.
SHELL_STATE = "shell_state"
# A feature in HELLO: the field `user` of a file verb runs it as another user.
FILE_USER = "file_user"
# A feature in HELLO: `exec.start` can start a program for a later command, and use it.
HELD_EXEC = "held_exec"
# A feature in HELLO: `fs.read` can pass the open file instead of its content.
DESCRIPTORS = "descriptors"
# A feature in HELLO: the field `env` of `lease` sets the environment, once.
LEASE_ENV = "lease_env"
# A feature in HELLO: `shell.list` returns environments, and `lease` opens shells with them.
KEPT_SHELLS = "kept_shells"
# A feature in HELLO: the field `observe` of a request says that it is not an activity.
OBSERVE = "observe"

_HEADER = struct.Struct(">IBI")
HEADER_BYTES = _HEADER.size
# `length` counts kind and stream too.
_COUNTED = 5


class Kind(IntEnum):
    HELLO = 1
    OPEN = 2
    DATA = 3
    END = 4
    CREDIT = 5
    CANCEL = 6
    EVENT = 7
    CHUNK = 8
    RESULT = 9
    ERROR = 10


BODY_LIMITS: Mapping[Kind, int] = MappingProxyType(
    {kind: 8 * MIB if kind is Kind.OPEN else MIB for kind in Kind}
)
FROM_RUNNER = frozenset(
    {Kind.HELLO, Kind.DATA, Kind.CREDIT, Kind.EVENT, Kind.CHUNK, Kind.RESULT, Kind.ERROR}
)
FROM_CLIENT = frozenset({Kind.OPEN, Kind.DATA, Kind.END, Kind.CREDIT, Kind.CANCEL})

_CHUNK = struct.Struct(">QQB")
CHUNK_HEADER_BYTES = _CHUNK.size
_CREDIT = struct.Struct(">I")


# Below this, one receive for the rest and the following frames is cheaper than a separate one.
_IN_PLACE_BYTES = 16 * 1024


class Frame(NamedTuple):
    kind: Kind
    stream: int
    body: bytes | bytearray
    """A bytearray if a large DATA body was received in place; it is not shared."""


def header(kind: Kind, stream: int, body_bytes: int) -> bytes:
    """Return the nine bytes before a body; the body may then be sent beside them, without a
    copy.
    """
    return _HEADER.pack(_COUNTED + body_bytes, kind, stream)


def encode(kind: Kind, stream: int, body: bytes = b"") -> bytes:
    """Return one whole frame. Raise ValueError for a body over its limit, which is a bug of
    ours.
    """
    if len(body) > BODY_LIMITS[kind]:
        raise ValueError(f"a {kind.name} body of {len(body)} bytes is over {BODY_LIMITS[kind]}")
    return _HEADER.pack(_COUNTED + len(body), kind, stream) + body


def encode_credit(stream: int, amount: int) -> bytes:
    return _HEADER.pack(_COUNTED + _CREDIT.size, Kind.CREDIT, stream) + _CREDIT.pack(amount)


def decode_credit(body: bytes | bytearray) -> int:
    if len(body) != _CREDIT.size:
        raise ProtocolViolation(f"a CREDIT frame had a body of {len(body)} bytes")
    amount: int = _CREDIT.unpack(body)[0]
    return amount


def encode_chunk(seq: int, offset: int, source: int, data: bytes) -> bytes:
    return _CHUNK.pack(seq, offset, source) + data


class ChunkHead(NamedTuple):
    seq: int
    offset: int
    source: int


def decode_chunk_head(body: bytes | bytearray) -> ChunkHead:
    """Decode the head of a CHUNK body; its data starts at CHUNK_HEADER_BYTES."""
    if len(body) < CHUNK_HEADER_BYTES:
        raise ProtocolViolation(f"a CHUNK frame had a body of {len(body)} bytes")
    head = ChunkHead._make(_CHUNK.unpack_from(body))
    if head.source > 2:
        raise ProtocolViolation(f"a CHUNK frame named the unknown source {head.source}")
    return head


class Decoder:
    """Turns bytes into whole frames, however the bytes are split."""

    __slots__ = ("_accepts", "_body", "_filled", "_kind", "_missing", "_rest", "_stream")

    def __init__(self, accepts: frozenset[Kind]) -> None:
        """`accepts` are the kinds that the other side may send; others end the connection."""
        self._accepts = {int(kind): (kind, BODY_LIMITS[kind]) for kind in accepts}
        self._rest = b""
        self._body = bytearray()
        self._filled = 0
        self._missing = 0
        self._kind = Kind.DATA
        self._stream = 0

    @property
    def idle(self) -> bool:
        """True between two frames; a stream that ends elsewhere was cut off."""
        return not self._missing and not self._rest

    def feed(self, data: bytes) -> list[Frame]:
        """Return every frame that `data` completes. Raise ProtocolViolation."""
        frames: list[Frame] = []
        position = 0
        if self._missing:
            position = min(self._missing, len(data))
            self._body[self._filled : self._filled + position] = memoryview(data)[:position]
            done = self.filled(position)
            if done is None:
                return frames
            frames.append(done)
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        end = len(data)
        while end - position >= HEADER_BYTES:
            length, number, stream = _HEADER.unpack_from(data, position)
            kind = self._checked(length, number)
            position += HEADER_BYTES
            size = length - _COUNTED
            if end - position < size:
                self._kind, self._stream = kind, stream
                self._filled = end - position
                self._missing = size - self._filled
                # Allocated at once, bounded by the kind's limit: the rest is received into it.
                self._body = bytearray(size)
                self._body[: self._filled] = memoryview(data)[position:]
                return frames
            frames.append(Frame(kind, stream, data[position : position + size]))
            position += size
        if position < end:
            self._rest = data[position:]
        return frames

    def room(self) -> memoryview | None:
        """Return the buffer for the rest of a large body; receive into it and call `filled`.

        Return None if little or nothing is missing; then use `feed`.
        """
        if self._missing < _IN_PLACE_BYTES:
            return None
        return memoryview(self._body)[self._filled :]

    def filled(self, count: int) -> Frame | None:
        """Report that `count` bytes were received in place. Return the frame if it is complete."""
        self._filled += count
        self._missing -= count
        if self._missing:
            return None
        body, self._body = self._body, bytearray()
        # Only data is passed on as it is; everything else is small and must be hashable.
        whole = body if self._kind is Kind.DATA else bytes(body)
        return Frame(self._kind, self._stream, whole)

    def _checked(self, length: int, number: int) -> Kind:
        accepted = self._accepts.get(number)
        if accepted is None:
            raise ProtocolViolation(
                f"received a frame of kind {number}, which the runner must not send"
            )
        kind, limit = accepted
        if not 0 <= length - _COUNTED <= limit:
            raise ProtocolViolation(f"a {kind.name} frame has a declared length of {length} bytes")
        return kind
