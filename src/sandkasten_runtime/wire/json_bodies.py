"""JSON bodies and the *Bytes* convention, in both directions.

A body is one JSON object of bounded size and depth. *Bytes* (paths, arguments, values) are a JSON
string if they are valid UTF-8 and `{"b64": …}` otherwise; on our side they are `str` with
surrogateescape, which loses nothing. Malformed input raises ProtocolViolation; values that cannot
be encoded raise InvalidRequest.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, NoReturn

from sandkasten.errors import InvalidRequest, ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Mapping

# The deepest body of the protocol is RESULT → processes → process → cmdline → {"b64"}: five.
MAX_DEPTH = 16


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encode_body(fields: Mapping[str, object]) -> bytes:
    """Encode one JSON object. Raise InvalidRequest for a string that is not valid Unicode."""
    try:
        return _ENCODER.encode(fields).encode()
    except UnicodeEncodeError as exc:
        raise InvalidRequest(
            "a string of the request is not valid Unicode",
            hint="paths, arguments and values may be any bytes; other strings may not",
        ) from exc


def decode_body(body: bytes | bytearray, what: str) -> dict[str, Any]:
    """Decode the JSON object that a runner sent as `what`. Raise ProtocolViolation."""
    try:
        # json raises RecursionError on deep nesting and ValueError on numbers of thousands of
        # digits: both are caused by the sender.
        value = _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as exc:
        raise ProtocolViolation(f"{what} was not JSON") from exc
    if type(value) is not dict:
        raise ProtocolViolation(f"{what} was not a JSON object")
    # A body with few brackets cannot be deep, and nearly all have few.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _too_deep(value):
        raise ProtocolViolation(f"{what} was nested more than {MAX_DEPTH} deep")
    return value


def _too_deep(value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def to_bytes_json(value: str | bytes) -> str | dict[str, str]:
    """Encode a path, argument or value for the protocol. Raise InvalidRequest for a NUL."""
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidRequest(
                "a path, argument or value contains a NUL character", hint="remove it"
            )
        if value.isascii():
            return value
        try:
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as exc:
            raise InvalidRequest(
                "a path, argument or value is not valid Unicode", hint="pass bytes instead"
            ) from exc
    else:
        raw = value
        if b"\0" in raw:
            raise InvalidRequest("a path, argument or value contains a NUL byte", hint="remove it")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(raw).decode("ascii")}


def from_bytes_json(value: object, what: str) -> str:
    """Decode *Bytes* to str with surrogateescape. Raise ProtocolViolation."""
    if type(value) is str:
        if value.isascii():
            if "\0" not in value:
                return value
        elif "\0" not in value and _sayable(value):
            return value
    elif type(value) is dict and type(value.get("b64")) is str:
        try:
            raw = base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError) as exc:
            raise ProtocolViolation(f"{what} was not valid base64") from exc
        if b"\0" not in raw:
            return raw.decode("utf-8", "surrogateescape")
    raise ProtocolViolation(f"{what} was not a byte string")


def _sayable(text: str) -> bool:
    """Return False for lone surrogates: JSON can express them, and here they would look like
    raw bytes.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
