"""The settings `packages.*`: whether sandboxes get packages, which, and from where.

Raises InvalidConfiguration that names the setting and never repeats an address, which may hold
credentials. Opens nothing: whether an index answers is found out when it is asked.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sandkasten.daemon.settings.durations import seconds
from sandkasten.daemon.settings.setting_parsers import count, flag, names, text
from sandkasten.errors import InvalidConfiguration
from sandkasten.images.packages.package_rules import PackageRules, address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.daemon.settings.setting_parsers import Value

_ROOM: Final = "packages."
# Longer than a large wheel takes on a slow line.
_LONGEST_S: Final = 86_400.0


def url(name: str, value: object) -> str:
    said = text(name, value)
    try:
        split = urlsplit(said)
        sound = split.scheme in ("http", "https") and split.hostname and split.port != 0
    except ValueError:
        sound = False
    if not sound or not said.isprintable() or " " in said:
        raise InvalidConfiguration(
            f"{name} is not the address of an index",
            hint="write https://host/path",
            setting=name,
        )
    return said


def folder(name: str, value: object) -> str:
    said = text(name, value)
    # pip takes a list apart at spaces.
    if not os.path.isabs(said) or any(one.isspace() for one in said):
        raise InvalidConfiguration(
            f"{name} must be the absolute path of a directory, without spaces",
            hint="write /srv/wheels",
            setting=name,
        )
    return said


_DEFAULTS: Final = PackageRules()
SETTINGS: Final[tuple[tuple[str, Callable[[str, object], Value], Value], ...]] = (
    (_ROOM + "enabled", flag, _DEFAULTS.enabled),
    (_ROOM + "index_url", url, None),
    (_ROOM + "find_links", folder, None),
    (_ROOM + "npm_registry", url, None),
    (_ROOM + "allow", names, None),
    (_ROOM + "timeout_seconds", seconds, _DEFAULTS.timeout_s),
    (_ROOM + "max_bytes", count, _DEFAULTS.max_bytes),
)


def package_rules(said: Mapping[str, Value]) -> PackageRules:
    values = {name: said[name] for name, _, _ in SETTINGS}
    timeout = values[_ROOM + "timeout_seconds"]
    timeout_s = float(timeout) if isinstance(timeout, int | float) else _DEFAULTS.timeout_s
    if not 1 <= timeout_s <= _LONGEST_S:
        raise InvalidConfiguration(
            f"packages.timeout_seconds is {timeout_s:g}",
            hint=f"1 to {_LONGEST_S:g}",
            setting=_ROOM + "timeout_seconds",
        )
    index, links = values[_ROOM + "index_url"], values[_ROOM + "find_links"]
    registry = values[_ROOM + "npm_registry"]
    allow, most = values[_ROOM + "allow"], values[_ROOM + "max_bytes"]
    return PackageRules(
        enabled=bool(values[_ROOM + "enabled"]),
        index_url=None if index is None else str(index),
        find_links=None if links is None else str(links),
        npm_registry=None if registry is None else str(registry),
        allow=tuple(allow) if isinstance(allow, list) else None,
        timeout_s=timeout_s,
        max_bytes=most if isinstance(most, int) else _DEFAULTS.max_bytes,
    )


def printable(name: str, value: Value) -> Value:
    """The value as `config show` may print it: an address without who we are there."""
    if name in (_ROOM + "index_url", _ROOM + "npm_registry") and isinstance(value, str):
        return address(value)
    return value
