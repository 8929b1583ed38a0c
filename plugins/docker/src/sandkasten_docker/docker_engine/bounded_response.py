"""Bounds on the responses of an engine, over aiohttp: an engine may be faulty or hostile.

A response longer than any engine has reason to send ends its request. Pieces of a command's stream
are passed on as they arrive, whatever length the engine declares. Knows neither containers nor
sandboxes.
"""

from __future__ import annotations

import json
import re
import struct
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiodocker.stream import Message

from sandkasten.outgoing_http import read_whole

if TYPE_CHECKING:
    from aiodocker.stream import Stream

# A list of a thousand containers is 2 MB.
MOST_BYTES: Final = 32 << 20
_SURROGATE: Final = re.compile(rb"\\u[dD]")
_HEADER: Final = struct.Struct(">BxxxL")


class BoundedResponse(aiohttp.ClientResponse):
    async def read(self) -> bytes:
        if self._body is not None:
            return await super().read()
        try:
            self._body = await read_whole(self, MOST_BYTES)
        except BaseException:
            self.close()
            raise
        protocol = None if self._connection is None else self._connection.protocol
        if protocol is None or not protocol.upgraded:
            await self._wait_released()
        return self._body

    async def json(self, **options: Any) -> Any:
        document = await super().json(**options)
        if self._body is not None and _SURROGATE.search(self._body):
            # A lone surrogate cannot be stored or passed on: ValueError.
            json.dumps(document, ensure_ascii=False).encode()
        return document


class _Pieces:
    """Parser of a stream: `1 byte source, 3 unused, 4 length`, then the piece."""

    def __init__(self, queue: Any, buffered: bytes) -> None:
        self._queue = queue
        self._head = b""
        self._source, self._left = 0, 0
        self.feed_data(buffered)

    def set_exception(self, exc: BaseException, *_: Any) -> None:
        self._queue.set_exception(exc)

    def feed_eof(self) -> None:
        self._queue.feed_eof()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        at = 0
        while at < len(data):
            if not self._left:
                part = data[at : at + _HEADER.size - len(self._head)]
                self._head += part
                at += len(part)
                if len(self._head) == _HEADER.size:
                    self._source, self._left = _HEADER.unpack(self._head)
                    self._head = b""
                continue
            piece = bytes(data[at : at + self._left])
            at += len(piece)
            self._left -= len(piece)
            self._queue.feed_data(Message(self._source, piece), len(piece))
        return False, b""


def hand_on_pieces(stream: Stream) -> None:
    """From now on, pass pieces on before they are complete. Call right after the stream was
    opened.
    """
    queue = stream._queue
    connection = None if stream._resp is None else stream._resp.connection
    protocol = None if connection is None else connection.protocol
    # Not by truth value: an empty queue is false.
    if queue is None or protocol is None:
        raise aiohttp.ClientPayloadError("it closed the stream at once")
    parser = protocol._payload_parser
    protocol.set_parser(_Pieces(queue, bytes(parser._buf if parser is not None else b"")), queue)
