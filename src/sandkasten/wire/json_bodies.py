"""JSON bodies and the *Bytes* convention, both ways.

A body is one JSON object of bounded size and depth. *Bytes* (paths, arguments, values) are a
JSON string when valid UTF-8 and `{"b64": …}` otherwise; on our side they are `str` with
surrogateescape, which loses nothing. What arrives malformed raises ProtocolViolation; what we
were asked to send and cannot be said raises InvalidRequest.
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
    """One JSON object; raises InvalidRequest for a text that is not valid Unicode."""
    try:
        return _ENCODER.encode(fields).encode()
    except UnicodeEncodeError as exc:
        raise InvalidRequest(
            "a string of the request is not valid Unicode",
            hint="paths, arguments and values may be any bytes; other strings may not",
        ) from exc


def decode_body(body: bytes | bytearray, what: str) -> dict[str, Any]:
    """The JSON object a runner sent as `what`; raises ProtocolViolation."""
    try:
        # json gives up by RecursionError on deep nesting and by ValueError on numbers of
        # thousands of digits: both are the sender's doing.
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
    """A path, argument or value as the protocol writes it; raises InvalidRequest for a NUL."""
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidRequest("a path, argument or value holds a NUL character")
        if value.isascii():
            return value
        try:
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as exc:
            raise InvalidRequest("a path, argument or value is not valid Unicode") from exc
    else:
        raw = value
        if b"\0" in raw:
            raise InvalidRequest("a path, argument or value holds a NUL byte")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(raw).decode("ascii")}


def from_bytes_json(value: object, what: str) -> str:
    """What came back, as str with surrogateescape; raises ProtocolViolation."""
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
    """False for lone surrogates: JSON can spell them, and here they would pass for raw bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
