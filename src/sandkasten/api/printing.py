"""Values as JSON bytes, the same way everywhere."""

from __future__ import annotations

import base64

from pydantic_core import to_json
from starlette.responses import Response


def as_json(value: object) -> bytes:
    return to_json(value, inf_nan_mode="null")


def answer(value: object, status: int = 200) -> Response:
    return Response(as_json(value), status_code=status, media_type="application/json")


def bytes_fields(name: str, data: bytes) -> dict[str, str]:
    """Bytes as text; and where they are no UTF-8, the bytes themselves beside it."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: data.decode(errors="replace"), f"{name}_b64": base64.b64encode(data).decode()}
