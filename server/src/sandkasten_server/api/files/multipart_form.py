"""A streaming parser of multipart forms: headers of a part, then its bytes, piece by piece.

Keeps no more of a file than the current piece. A form that is malformed, ends early or has too many
headers or parts is InvalidRequest.
"""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# More than any route takes. Each takes a tenth of a millisecond, and a thousand fit in one piece.
MAX_PARTS: Final = 12_000


@dataclass(slots=True)
class Part:
    """A part; `filename` is None for a plain field. Read its bytes before the next part."""

    name: str
    filename: str | None
    data: AsyncIterator[bytes]
    content_type: str | None = None


@dataclass(slots=True)
class _Began:
    headers: dict[bytes, bytes] = field(default_factory=dict)


class _Ended:
    pass


_Event = _Began | bytes | _Ended


class Form:
    """Iterating yields the parts in order; a part that was not read is skipped."""

    def __init__(self, content_type: str, pieces: AsyncIterator[bytes]) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if not boundary or len(boundary) > 200:
            raise _malformed("its Content-Type names no boundary")
        self._pieces = pieces
        self._events: list[_Event] = []
        self._at = 0
        self._whole = False
        self._parts = 0
        self._name = b""
        self._value = b""
        self._began: _Began | None = None
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_begin,
                "on_header_field": self._on_name,
                "on_header_value": self._on_value,
                "on_header_end": self._on_header,
                "on_headers_finished": self._on_headers,
                "on_part_data": self._on_data,
                "on_part_end": self._on_end,
                "on_end": self._on_last,
            },
        )

    async def __aiter__(self) -> AsyncIterator[Part]:
        while (event := await self._next()) is not None:
            if not isinstance(event, _Began):
                continue  # the rest of a part that was not read
            _, options = parse_options_header(
                event.headers.get(b"content-disposition", b"").decode("latin-1")
            )
            name = options.get(b"name")
            if name is None:
                raise _malformed("a part of it has no name")
            filename = options.get(b"filename")
            yield Part(
                name.decode("utf-8", "surrogateescape"),
                None if filename is None else filename.decode("utf-8", "surrogateescape"),
                self._data(),
                event.headers.get(b"content-type", b"").decode("latin-1") or None,
            )

    async def _data(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next(), bytes):
            yield event

    async def _next(self) -> _Event | None:
        """Return the next event; None after the last one."""
        while self._at == len(self._events):
            self._events.clear()
            self._at = 0
            if self._whole:
                return None
            # A piece that is here already would be parsed at once.
            await asyncio.sleep(0)
            piece = await anext(self._pieces, None)
            if piece is None:
                raise _malformed("it ends before its last boundary")
            try:
                self._parser.write(piece)
            except FormParserError as exc:
                raise _malformed(str(exc)[:200]) from exc
        event = self._events[self._at]
        self._at += 1
        return event

    # ---- calls of the parser; bytes are of the piece at hand

    def _on_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _malformed(f"it has more than {MAX_PARTS} parts")
        self._began = _Began()

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        if self._began is not None:
            self._began.headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _on_headers(self) -> None:
        if self._began is not None:
            self._events.append(self._began)

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(data[start:end])

    def _on_end(self) -> None:
        self._events.append(_Ended())

    def _on_last(self) -> None:
        self._whole = True


def _malformed(why: str) -> InvalidRequest:
    return InvalidRequest(f"the form cannot be read: {why}", hint="send multipart/form-data")
