"""One OPEN body, read strictly: a field of the wrong type is `invalid`, an unknown one ignored."""

from __future__ import annotations

import re
from typing import Any

from sandkasten.backends.memory.refusal import Refusal
from sandkasten.errors import ProtocolViolation
from sandkasten.wire.messages import from_bytes_json

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Request:
    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body

    def has(self, name: str) -> bool:
        return self._body.get(name) is not None

    def number(self, name: str, default: int, *, most: int = 2**53) -> int:
        value = self._body.get(name)
        if value is None:
            return default
        if type(value) is not int or not 0 <= value <= most:
            raise Refusal("invalid", f"{name} is not a number in range")
        return value

    def number_or_none(self, name: str) -> int | None:
        return self.number(name, 0) if self.has(name) else None

    def flag(self, name: str, default: bool) -> bool:
        value = self._body.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            raise Refusal("invalid", f"{name} is not a boolean")
        return value

    def text(self, name: str, pattern: re.Pattern[str]) -> str:
        value = self._body.get(name)
        if type(value) is not str or not pattern.match(value):
            raise Refusal("invalid", f"{name} is missing or malformed")
        return value

    def text_or_none(self, name: str, pattern: re.Pattern[str]) -> str | None:
        return self.text(name, pattern) if self.has(name) else None

    def raw(self, name: str) -> bytes:
        return _bytes(self._body.get(name), name)

    def raw_or_none(self, name: str) -> bytes | None:
        return self.raw(name) if self.has(name) else None

    def raw_list(self, name: str) -> list[bytes]:
        value = self._body.get(name)
        if value is None:
            return []
        if type(value) is not list:
            raise Refusal("invalid", f"{name} is not a list")
        return [_bytes(one, name) for one in value]

    def environment(self, name: str) -> dict[str, str]:
        value = self._body.get(name)
        if value is None:
            return {}
        if type(value) is not dict or not all(_NAME.match(key) for key in value):
            raise Refusal("invalid", f"{name} is not an object of names and values")
        return {
            key: _bytes(one, name).decode("utf-8", "surrogateescape") for key, one in value.items()
        }

    def object(self, name: str) -> Request | None:
        value = self._body.get(name)
        if value is None:
            return None
        if type(value) is not dict:
            raise Refusal("invalid", f"{name} is not an object")
        return Request(value)


def _bytes(value: object, name: str) -> bytes:
    try:
        return from_bytes_json(value, name).encode("utf-8", "surrogateescape")
    except ProtocolViolation as exc:
        raise Refusal("invalid", exc.message) from exc
