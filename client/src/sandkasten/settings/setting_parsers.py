"""Parsers of setting values, one function for each kind of value.

Each takes the name of the setting (or of the variable that sets it) and the value as it was
written. It returns the typed value or raises InvalidConfiguration, which names both.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from sandkasten.errors import InvalidConfiguration, InvalidImage, InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import durations
from sandkasten.model.access.preview_links import checked_domain
from sandkasten.model.images.image_name import checked_name
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_BOOLEANS: Final = {
    "true": True, "1": True, "yes": True,
    "false": False, "0": False, "no": False,
}  # fmt: skip
_NUMBERS: Final = "write a number without a unit, such as 256 or 0.5"
_MAX_RULES: Final = 100

C = TypeVar("C", bound=str)


def invalid(name: str, expected: str, value: object, hint: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{name} must be {expected}, got {str(value)[:40]!r}", hint=hint, setting=name
    )


# ---- plain values


def string(name: str, value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value or len(value) > 4096:
        hint = "write 1 to 4096 characters; a string of digits must be in quotes"
        raise invalid(name, "a non-empty string", value, hint)
    return value


def boolean(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _BOOLEANS:
        return _BOOLEANS[value.strip().lower()]
    raise invalid(name, "true or false", value, "write true or false (also yes or no, 1 or 0)")


def number(name: str, value: object) -> float | int:
    if isinstance(value, str):
        try:
            parsed = float(value)
        except ValueError as exc:
            raise invalid(name, "a number", value, _NUMBERS) from exc
        value = int(parsed) if parsed.is_integer() else parsed
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(name, "a number", value, _NUMBERS)
    # False for NaN too. No setting is larger, and a float could not hold every larger integer.
    if not abs(value) <= 1 << 60:
        raise invalid(name, "a number", value, _NUMBERS)
    return value


def positive_number(name: str, value: object) -> float | int:
    parsed = number(name, value)
    if parsed <= 0:
        raise invalid(name, "a number greater than 0", value, _NUMBERS)
    return parsed


def positive_integer(name: str, value: object) -> int:
    parsed = number(name, value)
    if not 1 <= parsed <= 1 << 60 or parsed != int(parsed):
        raise invalid(name, "an integer of at least 1", value, "write a number such as 1 or 256")
    return int(parsed)


def string_list(name: str, value: object) -> tuple[str, ...]:
    """Accept a list, or a string with commas as an environment variable holds it."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        hint = "write [one, two], with quotes around numbers; in a variable one,two"
        raise invalid(name, "a list of strings", value, hint)
    return tuple(value)


def pair_list(name: str, value: object) -> tuple[str, ...]:
    """Return strings `key=value`; accept a mapping too."""
    if isinstance(value, dict):
        value = [f"{key}={content}" for key, content in value.items()]
    return string_list(name, value)


def show_pairs(pairs: Mapping[str, str]) -> list[str]:
    return [f"{key}={content}" for key, content in pairs.items()]


def choice(*choices: C) -> Callable[[str, object], C]:
    def parse(name: str, value: object) -> C:
        for allowed in choices:
            if value == allowed:
                return allowed
        raise InvalidConfiguration(
            f"{name} must be one of {', '.join(choices)}, got {str(value)[:40]!r}",
            hint=did_you_mean(str(value), choices),
            setting=name,
        )

    return parse


def seconds(name: str, value: object) -> float:
    """Accept a number of seconds, or units: `90`, `30m`, `1h30m`, `250ms`, `7d`."""
    try:
        # The operator's number may be larger than that of any request.
        duration: float | None = float(number(name, value))
    except InvalidConfiguration:
        duration = durations.seconds(value.strip().lower() if isinstance(value, str) else None)
    if not duration or duration < 0:
        hint = "write 90 (seconds), 30m, 1h30m or 30d"
        raise invalid(name, "a positive duration", value, hint)
    return duration


# ---- lists and mappings: the file has them as YAML, an environment variable as JSON


def from_json(name: str, value: object, hint: str) -> object:
    """Return the value of a JSON string, and any other value as it is. No message repeats it,
    because it may contain secrets.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as exc:
        message = f"{name} must be a list or a mapping; a string must be valid JSON"
        raise InvalidConfiguration(message, hint=hint, setting=name) from exc


def check_keys(name: str, value: Mapping[Any, object], keys: Sequence[str]) -> None:
    """Raise InvalidConfiguration if a mapping has a key that is not one of these."""
    for key in value:
        if key not in keys:
            raise InvalidConfiguration(
                f"{name} has an unknown key {shown(str(key))}",
                hint=did_you_mean(str(key), keys),
                setting=name,
            )


def rule_list(
    name: str, value: object, keys: Sequence[str], hint: str
) -> Mapping[str, Mapping[str, Any]]:
    """Return rules by their names, such as `policy.backends[0]`. A single rule needs no list."""
    value = from_json(name, value, hint)
    entries = [value] if isinstance(value, dict) else value
    if not isinstance(entries, list) or len(entries) > _MAX_RULES:
        message = f"{name} must be a list of at most {_MAX_RULES} rules"
        raise InvalidConfiguration(message, hint=hint, setting=name)
    rules = {f"{name}[{at}]": rule for at, rule in enumerate(entries)}
    for key, rule in rules.items():
        if not isinstance(rule, dict):
            raise InvalidConfiguration(f"{key} must be a mapping", hint=hint, setting=key)
        check_keys(key, rule, keys)
    return rules


# ---- secrets: no message repeats the value


def secret(name: str, value: object) -> str:
    return _secret(name, value, 8)


def hs256_secret(name: str, value: object) -> str:
    """Accept at least 32 characters: RFC 7518 requires as many bits as the hash has."""
    return _secret(name, value, 32)


def _secret(name: str, value: object, least: int) -> str:
    hint = "make one: openssl rand -hex 32"
    if not isinstance(value, str) or not least <= len(value) <= 512 or not value.isascii():
        message = f"{name} must be {least} to 512 ASCII characters"
        raise InvalidConfiguration(message, hint=hint, setting=name)
    if not value.isprintable() or " " in value:
        message = f"{name} must not contain spaces or control characters"
        raise InvalidConfiguration(message, hint=hint, setting=name)
    return value


def secret_in(name: str, file: Path, parse: Callable[[str, object], str]) -> str:
    """Return the secret in a file of one line, which only its owner and group may access."""
    try:
        if file.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise InvalidConfiguration(
                f"{file} is accessible to every user of this machine",
                hint=f"chmod 600 {file}",
                setting=name,
            )
        return parse(name, file.read_text("ascii").strip())
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or type(exc).__name__
        hint = "write the key into it, one line"
        if isinstance(exc, PermissionError):
            hint = "check owner and mode of the file and its directories"
        raise InvalidConfiguration(
            f"the key in {file} cannot be read: {reason}", hint=hint, setting=name
        ) from exc


def service_key(name: str, value: object) -> str:
    """Accept the key of another service. It may be short: local models take any key."""
    # A line break at the end comes from the file that the variable was read from.
    value = value.strip() if isinstance(value, str) else value
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= 4096
        or not value.isascii()
        or not value.isprintable()
        or " " in value
    ):
        raise InvalidConfiguration(
            f"{name} must be printable ASCII characters without spaces",
            hint="use the key as the provider shows it",
            setting=name,
        )
    return value


# ---- addresses


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(name: str, value: object) -> Address:
    """Accept `host:port`; an IPv6 address must be in brackets."""
    host, _, port = string(name, value).rpartition(":")
    valid_port = port.isascii() and port.isdigit() and len(port) < 6 and int(port) <= 65_535
    if not host or not valid_port:
        only = valid_port and not host
        hint = f"write {f'127.0.0.1:{port}' if only else '127.0.0.1:8080'}; the port is 0 to 65535"
        raise invalid(name, "host:port", value, hint)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        hint = "write [::1]:8080"
        raise invalid(name, "host:port with an IPv6 address in brackets", value, hint)
    return Address(host.strip("[]"), int(port))


def domain(name: str, value: object) -> str:
    try:
        checked_domain(name, string(name, value))
    except InvalidRequest as exc:
        raise invalid(name, "a domain", value, exc.hint) from exc
    return str(value)


def http_url(name: str, value: object, expected: str, example: str) -> tuple[str, SplitResult]:
    """Return the URL and its parts. It may hold credentials, so no message repeats it."""
    if isinstance(value, str) and value.isprintable() and " " not in value and len(value) <= 4096:
        with suppress(ValueError):
            parts = urlsplit(value)
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                return value, parts
    raise InvalidConfiguration(f"{name} must be {expected}", hint=f"write {example}", setting=name)


# ---- images and paths


def image(name: str, value: object) -> str:
    try:
        return checked_name(value)
    except InvalidImage as exc:
        raise InvalidConfiguration(f"{name}: {exc.message}", hint=exc.hint, setting=name) from exc


def path(name: str, value: object) -> Path:
    """Return an absolute path: sockets, sandboxes and other processes get it too."""
    return Path(os.path.abspath(string(name, value)))


def path_list(name: str, value: object) -> tuple[Path, ...]:
    return tuple(Path(item) for item in string_list(name, value))


def inner_directory(example: str) -> Callable[[str, object], str]:
    """Return the parser of an absolute path inside an image, such as `example`."""

    def parse(name: str, value: object) -> str:
        directory = string(name, value).rstrip("/")
        if not directory.startswith("/") or {"", ".", ".."} & {*directory.split("/")[1:]}:
            hint = f"write a path such as {example}"
            raise invalid(name, "an absolute path without . and ..", value, hint)
        return directory

    return parse
