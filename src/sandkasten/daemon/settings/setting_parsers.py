"""What a setting may be, one function for each kind of value.

Given the setting's name and what was said, each returns the value or raises InvalidConfiguration
that names both. Knows no setting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

Value = str | int | float | bool | list[str] | None


def text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value or len(value) > 4096:
        raise bad(name, "a text", value)
    return value


def flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, str) and value.strip().lower() in known:
        return known[value.strip().lower()]
    raise bad(name, "true or false", value)


def figure(name: str, value: object) -> float | int:
    if isinstance(value, str):
        try:
            figure = float(value)
        except ValueError as exc:
            raise bad(name, "a number", value) from exc
        value = int(figure) if figure.is_integer() else figure
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad(name, "a number", value)
    return value


def count(name: str, value: object) -> int:
    asked = figure(name, value)
    if not 1 <= asked <= 1 << 60 or asked != int(asked):
        raise bad(name, "a whole number from 1", value)
    return int(asked)


def none_or_one(name: str, value: object) -> int:
    asked = figure(name, value)
    if asked not in (0, 1):
        raise bad(name, "0 or 1", value)
    return int(asked)


def names(name: str, value: object) -> list[str]:
    """A list, or texts with commas between them as an environment variable holds them."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise bad(name, "a list of texts", value)
    return list(value)


def choice(*known: str) -> Callable[[str, object], Value]:
    def parse(name: str, value: object) -> Value:
        if value not in known:
            raise InvalidConfiguration(
                f"{name} cannot be {str(value)[:40]!r}",
                hint=did_you_mean(str(value), known),
                setting=name,
            )
        return str(value)

    return parse


def only_true(name: str, value: object) -> bool:
    if not flag(name, value):
        raise InvalidConfiguration(
            f"{name} cannot be false: the root of a hardened sandbox is read-only",
            hint="leave it out; write to the workspace, /tmp or the home",
            setting=name,
        )
    return True


def bad(name: str, wanted: str, value: object) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{name} must be {wanted}, not {str(value)[:40]!r}", hint="correct the value", setting=name
    )


def address(name: str, value: object) -> str:
    """`host:port`; an IPv6 address in brackets."""
    host, _, port = text(name, value).rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise bad(name, "host:port", value)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise bad(name, "host:port with an IPv6 address in brackets", value)
    return f"{host}:{port}"


def secret(name: str, value: object) -> str:
    """A text that is never printed; the message does not repeat it either."""
    if not isinstance(value, str) or not 8 <= len(value) <= 512 or not value.isascii():
        raise InvalidConfiguration(
            f"{name} must be 8 to 512 ASCII characters",
            hint="make one: openssl rand -hex 24",
            setting=name,
        )
    if not value.isprintable() or " " in value:
        raise InvalidConfiguration(
            f"{name} holds spaces or control characters", hint="choose another", setting=name
        )
    return value
