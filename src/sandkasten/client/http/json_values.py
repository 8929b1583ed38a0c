"""Single values out of JSON that came over the network: the right type, or ProtocolViolation.

Pure. A field that is missing where it may be is the default; a field of another type never is.
"""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sandkasten.errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]
T = TypeVar("T")


def wrong(name: str) -> ProtocolViolation:
    return ProtocolViolation(
        f"the daemon's answer has no usable {name}",
        hint="is the client as new as the daemon?",
    )


def record(value: object, name: str = "object") -> Json:
    if not isinstance(value, dict):
        raise wrong(name)
    return value


def records(value: object, name: str) -> list[Json]:
    if not isinstance(value, list):
        raise wrong(name)
    return [record(one, name) for one in value]


def text(found: Json, name: str, default: str | None = None) -> str:
    value = found.get(name, default)
    if not isinstance(value, str):
        raise wrong(name)
    return value


def maybe_text(found: Json, name: str) -> str | None:
    value = found.get(name)
    return value if value is None else text(found, name)


def figure(found: Json, name: str, default: float | None = None) -> float:
    value = found.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(name)
    return value


def count(found: Json, name: str, default: int | None = None) -> int:
    value = figure(found, name, default)
    if value != int(value):
        raise wrong(name)
    return int(value)


def maybe_count(found: Json, name: str) -> int | None:
    return None if found.get(name) is None else count(found, name)


def maybe_figure(found: Json, name: str) -> float | None:
    return None if found.get(name) is None else figure(found, name)


def yes(found: Json, name: str, default: bool = False) -> bool:
    value = found.get(name, default)
    if not isinstance(value, bool):
        raise wrong(name)
    return value


def texts(found: Json, name: str) -> tuple[str, ...]:
    value = found.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise wrong(name)
    return tuple(value)


def mapping(found: Json, name: str) -> Mapping[str, str]:
    value = found.get(name) or {}
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise wrong(name)
    return value


def moment(found: Json, name: str, default: float | None = None) -> float:
    """Unix seconds, from a number or from an ISO date."""
    value = found.get(name, default)
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            raise wrong(name) from None
    return figure(found, name, default)


def maybe_moment(found: Json, name: str) -> float | None:
    return None if found.get(name) is None else moment(found, name)


def decoded(value: object, name: str) -> bytes:
    if not isinstance(value, str):
        raise wrong(name)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise wrong(name) from None


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def stream_bytes(found: Json, name: str) -> bytes:
    """`name_b64` where it is there, because then `name` lost something; else `name`."""
    exact = found.get(f"{name}_b64")
    if exact is not None:
        return decoded(exact, f"{name}_b64")
    return text(found, name, "").encode("utf-8", "surrogatepass")


def choice(value: object, allowed: tuple[T, ...], name: str) -> T:
    if value not in allowed:
        raise wrong(name)
    return value


def given(**fields: object) -> Json:
    """The fields that were said; None and empty ones leave it to the daemon."""
    return {
        name: value
        for name, value in fields.items()
        if value is not None and value != {} and value != [] and value != ()
    }
