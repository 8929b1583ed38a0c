"""Frames: `u32be length, u8 kind, u32be stream, body`, and nothing about what bodies mean.

Pure, no I/O. A decoder holds at most one unfinished frame, whose length was checked against
the limit of its kind before a byte of the body was kept. What is not a frame raises
ProtocolViolation; the decoder is then useless and so is the connection.
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
GENERATION = 2
# From this generation on a runner says when it ends by its lease.
SAYS_ENDING = 2

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


# Below this, one receive for the rest and whatever follows is cheaper than one of its own.
_IN_PLACE_BYTES = 16 * 1024


class Frame(NamedTuple):
    kind: Kind
    stream: int
    body: bytes | bytearray
    """A bytearray where a large DATA body was received in place; nobody else holds it."""


def header(kind: Kind, stream: int, body_bytes: int) -> bytes:
    """The nine bytes before a body; the body may then travel beside them, uncopied."""
    return _HEADER.pack(_COUNTED + body_bytes, kind, stream)


def encode(kind: Kind, stream: int, body: bytes = b"") -> bytes:
    """One whole frame; raises ValueError for a body over its limit (our own mistake)."""
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
    """The head of a CHUNK body; its data begins at CHUNK_HEADER_BYTES."""
    if len(body) < CHUNK_HEADER_BYTES:
        raise ProtocolViolation(f"a CHUNK frame had a body of {len(body)} bytes")
    head = ChunkHead._make(_CHUNK.unpack_from(body))
    if head.source > 2:
        raise ProtocolViolation(f"a CHUNK frame named the unknown source {head.source}")
    return head


class Decoder:
    """Bytes in, whole frames out, under any split of the bytes."""

    __slots__ = ("_accepts", "_body", "_filled", "_kind", "_missing", "_rest", "_stream")

    def __init__(self, accepts: frozenset[Kind]) -> None:
        """`accepts` are the kinds the other side may send; others end the connection."""
        self._accepts = {int(kind): (kind, BODY_LIMITS[kind]) for kind in accepts}
        self._rest = b""
        self._body = bytearray()
        self._filled = 0
        self._missing = 0
        self._kind = Kind.DATA
        self._stream = 0

    @property
    def idle(self) -> bool:
        """True between two frames; an end of the stream elsewhere cut one off."""
        return not self._missing and not self._rest

    def feed(self, data: bytes) -> list[Frame]:
        """Every frame that `data` completes; raises ProtocolViolation."""
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
                # Whole at once, bounded by the kind's limit: what follows is received into it.
                self._body = bytearray(size)
                self._body[: self._filled] = memoryview(data)[position:]
                return frames
            frames.append(Frame(kind, stream, data[position : position + size]))
            position += size
        if position < end:
            self._rest = data[position:]
        return frames

    def room(self) -> memoryview | None:
        """Where the rest of a large body belongs: receive into it and say `filled`.

        None when little or nothing is missing; then `feed` takes what comes.
        """
        if self._missing < _IN_PLACE_BYTES:
            return None
        return memoryview(self._body)[self._filled :]

    def filled(self, count: int) -> Frame | None:
        """So many bytes of the body were put in place; the frame, when it is whole."""
        self._filled += count
        self._missing -= count
        if self._missing:
            return None
        body, self._body = self._body, bytearray()
        # Only data is handed on as it is; everything else is small and wants to be hashable.
        whole = body if self._kind is Kind.DATA else bytes(body)
        return Frame(self._kind, self._stream, whole)

    def _checked(self, length: int, number: int) -> Kind:
        known = self._accepts.get(number)
        if known is None:
            raise ProtocolViolation(
                f"received a frame of kind {number}, which the runner must not send"
            )
        kind, limit = known
        if not 0 <= length - _COUNTED <= limit:
            raise ProtocolViolation(f"a {kind.name} frame has a declared length of {length} bytes")
        return kind
