"""Values decoded from the daemon's JSON; ProtocolViolation if they are invalid. Pure."""

from __future__ import annotations

import base64
from typing import Any, TypeVar

from sandkasten.errors import ProtocolViolation
from sandkasten.model.json_codec import Json, ShapeError, from_json

T = TypeVar("T")


def value_of(kind: type[T], value: object, name: str = "answer") -> T:
    """Return the value of the daemon's answer; `name` is what it is called in an error."""
    try:
        return from_json(kind, value, name)
    except ShapeError as exc:
        raise wrong(exc.field) from exc


def values_of(kind: type[T], value: object, name: str) -> list[T]:
    """Return the values of an array, which may be a field of that name."""
    if isinstance(value, dict):
        value = value.get(name)
    return [value_of(kind, item, name) for item in records(value, name)]


def wrong(name: str) -> ProtocolViolation:
    return ProtocolViolation(
        f"the daemon's answer has no valid {name}",
        hint="check that the client is as new as the daemon",
    )


def record(value: object, name: str = "object") -> Json:
    if not isinstance(value, dict):
        raise wrong(name)
    return value


def records(value: object, name: str) -> list[Json]:
    if not isinstance(value, list):
        raise wrong(name)
    return [record(item, name) for item in value]


def text(body: Json, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise wrong(name)
    return value


def maybe_text(body: Json, name: str) -> str | None:
    return None if body.get(name) is None else text(body, name)


def count(body: Json, name: str) -> int:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise wrong(name)
    return int(value)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def given(**fields: object) -> dict[str, Any]:
    """Return the fields that are not None or empty; the daemon has defaults for the others."""
    return {
        name: value
        for name, value in fields.items()
        if value is not None and value != {} and value != [] and value != ()
    }
