"""JSON responses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pydantic_core import PydanticSerializationError, to_json
from starlette.responses import Response

from sandkasten.model.json_codec import iso

if TYPE_CHECKING:
    from collections.abc import Mapping


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def as_json(value: object) -> bytes:
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        # A file name that is not UTF-8, in a message: an answer with a mark in it is better than
        # none.
        return to_json(_marked(value), inf_nan_mode="null")


def _marked(value: object) -> object:
    """Return a value with U+FFFD in place of surrogates."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_marked(name): _marked(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(one) for one in value]
    return value


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        as_json(value), status_code=status, media_type="application/json", headers=headers
    )


def moments(**times: float | None) -> dict[str, object]:
    """Return each time as ISO 8601 and as `<name>_unix`."""
    return {
        **{name: None if unix is None else iso(unix) for name, unix in times.items()},
        **{f"{name}_unix": unix for name, unix in times.items()},
    }
