"""Bounds on the responses of an engine, over aiohttp: an engine may be faulty or hostile.

A response longer than any engine has reason to send ends its request, and a redirect is not
followed. Pieces of a command's stream are passed on as they arrive, whatever length the engine
declares. Knows neither containers nor sandboxes.
"""

from __future__ import annotations

import json
import re
import struct
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiodocker.stream import Message

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
        found = bytearray()
        try:
            while part := await self.content.readany():
                found += part
                if len(found) > MOST_BYTES:
                    raise aiohttp.ClientPayloadError(
                        f"its answer is longer than {MOST_BYTES >> 20} MB"
                    )
        except BaseException:
            self.close()
            raise
        self._body = bytes(found)
        protocol = None if self._connection is None else self._connection.protocol
        if protocol is None or not protocol.upgraded:
            await self._wait_released()
        return self._body

    async def json(self, **options: Any) -> Any:
        found = await super().json(**options)
        if self._body is not None and _SURROGATE.search(self._body):
            # A lone surrogate cannot be stored or passed on: ValueError.
            json.dumps(found, ensure_ascii=False).encode()
        return found


def session(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    """Return the session. The connector stays the caller's."""
    watch = aiohttp.TraceConfig()
    watch.on_request_redirect.append(_elsewhere)
    return aiohttp.ClientSession(
        connector=connector,
        connector_owner=False,
        response_class=BoundedResponse,
        trace_configs=[watch],
        # The caller sets a deadline for each request.
        timeout=aiohttp.ClientTimeout(total=None),
    )


async def _elsewhere(*_: Any) -> None:
    # The operator named the engine to trust; no response may redirect us to another.
    raise aiohttp.ClientPayloadError("it redirects to another address")


class _Pieces:
    """Parser of a stream: `1 byte source, 3 unused, 4 length`, then the piece."""

    def __init__(self, queue: Any, begun: bytes) -> None:
        self._queue = queue
        self._head = b""
        self._source, self._left = 0, 0
        self.feed_data(begun)

    def set_exception(self, exc: BaseException, *_: Any) -> None:
        self._queue.set_exception(exc)

    def feed_eof(self) -> None:
        self._queue.feed_eof()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        at = 0
        while at < len(data):
            if not self._left:
                taken = data[at : at + _HEADER.size - len(self._head)]
                self._head += taken
                at += len(taken)
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
    begun = protocol._payload_parser
    protocol.set_parser(_Pieces(queue, bytes(begun._buf if begun is not None else b"")), queue)
