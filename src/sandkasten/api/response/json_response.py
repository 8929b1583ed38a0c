"""JSON responses."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from sandkasten.api.response.json_pieces import as_json, is_large, json_pieces
from sandkasten.api.response.streamed_response import Streamed
from sandkasten.model.json_codec import iso

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

JSON: Final = "application/json"


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    if is_large(value):
        return large_answer(value, AsyncExitStack(), status, headers)
    return Response(as_json(value), status_code=status, media_type=JSON, headers=headers)


def large_answer(
    value: object,
    held: AsyncExitStack,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a response that is encoded while it is sent; `held` is closed after that."""
    fields = {"content-type": JSON, **(headers or {})}
    return Streamed(held, pieces_in_turns(value), status=status, headers=fields)


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
