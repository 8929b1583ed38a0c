"""JSON responses."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from pydantic_core import to_json
from starlette.responses import Response

from sandkasten.model.json_codec import iso

if TYPE_CHECKING:
    from collections.abc import Mapping


def as_json(value: object) -> bytes:
    return to_json(value, inf_nan_mode="null")


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


def bytes_fields(name: str, data: bytes) -> dict[str, str]:
    """Return bytes as text, and as `<name>_b64` too if they are not UTF-8."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: data.decode(errors="replace"), f"{name}_b64": base64.b64encode(data).decode()}
