"""JSON responses, encoded at once or in short steps.

The encoder keeps the interpreter to itself: for a file of 10 MB full of control characters, of
which each takes six bytes, it would keep every other request waiting for a second or more.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from pydantic_core import PydanticSerializationError, to_json
from starlette.responses import Response

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.json_codec import iso
from sandkasten_server.api.response.streamed_response import Streamed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

JSON: Final = "application/json"
LARGE: Final = 256 * 1024
"""The weight from which a value is encoded in pieces. Less takes a few milliseconds at most."""
# A multiple of three, so that base64 of a piece has no padding: half a millisecond at most.
_PIECE: Final = 48 * 1024
# The weight of a number, a name or a bracket.
_SMALL: Final = 8
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    if is_large(value):
        return large_answer(value, AsyncExitStack(), status, headers)
    return Response(as_json(value), status_code=status, media_type=JSON, headers=headers)


def large_answer(
    value: object,
    stack: AsyncExitStack,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a response that is encoded while it is sent; `stack` is closed after that."""
    fields = {"content-type": JSON, **(headers or {})}
    return Streamed(stack, pieces_in_turns(value), status=status, headers=fields)


async def pieces_in_turns(value: object) -> AsyncIterator[bytes]:
    """Yield a value as JSON, and let other requests run between two pieces."""
    for piece in json_pieces(value):
        yield piece
        # To send a piece does not wait unless the client is slow.
        await asyncio.sleep(0)


def moments(**times: float | None) -> dict[str, object]:
    """Return each time as ISO 8601 and as `<name>_unix`."""
    return {
        **{name: None if unix is None else iso(unix) for name, unix in times.items()},
        **{f"{name}_unix": unix for name, unix in times.items()},
    }


@dataclass(frozen=True, slots=True)
class Base64:
    """Data of more than 256 KiB, which is encoded as base64 only when it is sent."""

    data: bytes


def as_base64(data: bytes) -> str | Base64:
    return Base64(data) if len(data) > LARGE else b64encode(data).decode()


def as_json(value: object) -> bytes:
    """Encode at once. What may be large is for `json_pieces`."""
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        # A file name that is not UTF-8, in a message: an answer with a mark in it is better than
        # none.
        return to_json(_marked(value), inf_nan_mode="null")


def is_large(value: object) -> bool:
    return _weight(value, LARGE) >= LARGE


def json_pieces(value: object) -> Iterator[bytes]:
    """Yield the encoding in pieces, each of which takes less than a few milliseconds."""
    buffer: list[bytes] = []
    size = 0
    for token in _tokens(value):
        buffer.append(token)
        size += len(token)
        if size >= _PIECE:
            yield b"".join(buffer)
            buffer.clear()
            size = 0
    if buffer:
        yield b"".join(buffer)


def _tokens(value: object) -> Iterator[bytes]:
    if isinstance(value, str) and len(value) > _PIECE:
        yield b'"'
        for at in range(0, len(value), _PIECE):
            yield as_json(value[at : at + _PIECE])[1:-1]
        yield b'"'
    elif isinstance(value, Base64):
        yield b'"'
        for at in range(0, len(value.data), _PIECE):
            yield b64encode(value.data[at : at + _PIECE])
        yield b'"'
    elif isinstance(value, dict) and _weight(value, _PIECE) >= _PIECE:
        pairs = ((as_json(str(name)) + b":", inner) for name, inner in value.items())
        yield from _members(b"{", pairs, b"}")
    elif isinstance(value, list | tuple) and _weight(value, _PIECE) >= _PIECE:
        yield from _members(b"[", ((b"", inner) for inner in value), b"]")
    else:
        yield as_json(value)


def _members(begin: bytes, members: Iterable[tuple[bytes, object]], end: bytes) -> Iterator[bytes]:
    for head, inner in members:
        yield begin + head
        yield from _tokens(inner)
        begin = b","
    yield end


def _weight(value: object, most: int) -> int:
    """Return about how many bytes are to be encoded, or any number of at least `most`."""
    weight = 0
    waiting: list[object] = [value]
    while waiting and weight < most:
        inner = waiting.pop()
        if isinstance(inner, str):
            weight += len(inner) + _SMALL
        elif isinstance(inner, Base64):
            weight += len(inner.data)
        elif isinstance(inner, dict):
            weight += _SMALL * (1 + len(inner))
            waiting += inner.values()
        elif isinstance(inner, list | tuple):
            weight += _SMALL
            waiting += inner
        else:
            weight += _SMALL
    return weight


def _marked(value: object) -> object:
    """Return a value with U+FFFD in place of surrogates."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_marked(name): _marked(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(item) for item in value]
    return value
