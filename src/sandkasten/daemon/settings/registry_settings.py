"""The setting `images.registries`: how each registry is reached, read and checked.

From the file a mapping of hosts, from the environment the same as JSON. What is shown of it is
which keys were set, never a value: some of them are secrets. Raises InvalidConfiguration.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration
from sandkasten.images.registry.registry_credentials import Access
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOST: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?\Z")
_TEXTS: Final = ("username", "password", "password_file", "token", "ca_file")
_KEYS: Final = (*_TEXTS, "insecure")


class Registries(list[str]):
    """What may be shown, as a list; what is meant, in `access`."""

    def __init__(self, access: Mapping[str, Access], said: Mapping[str, list[str]]) -> None:
        super().__init__(f"{host} ({', '.join(keys)})" for host, keys in said.items())
        self.access = dict(access)


def parse_registries(name: str, value: object) -> Registries:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as exc:
            raise _bad(name, "is not JSON") from exc
    if not isinstance(value, dict):
        raise _bad(name, "is not a mapping of hosts")
    access: dict[str, Access] = {}
    said: dict[str, list[str]] = {}
    for host, entry in value.items():
        if not isinstance(host, str) or not _HOST.match(host):
            raise _bad(name, f"has {shown(str(host))}, which is no host")
        if not isinstance(entry, dict):
            raise _bad(name, f"has no mapping under {host}")
        access[host] = _access(name, host, entry)
        said[host] = sorted(str(key) for key in entry)
    return Registries(access, said)


def _access(name: str, host: str, entry: Mapping[object, object]) -> Access:
    for key in entry:
        if key not in _KEYS:
            raise InvalidConfiguration(
                f"{name}.{host} has an unknown key {shown(str(key))}",
                hint=did_you_mean(str(key), _KEYS),
                setting=name,
            )
    texts: dict[str, str] = {}
    for key in _TEXTS:
        given = entry.get(key, "")
        if not isinstance(given, str) or not given.isprintable():
            raise _bad(name, f"has no text in {host}.{key}")
        texts[key] = given
    insecure = entry.get("insecure", False)
    if not isinstance(insecure, bool):
        raise _bad(name, f"has neither true nor false in {host}.insecure")
    ways = [key for key in ("password", "password_file", "token") if texts[key]]
    if len(ways) > 1:
        raise _bad(name, f"has both {' and '.join(ways)} for {host}")
    if bool(texts["username"]) != (ways in (["password"], ["password_file"])):
        raise _bad(name, f"has only one of username and password for {host}")
    return Access(**texts, insecure=insecure)


def _bad(name: str, what: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{name} {what}",
        hint="write host: {username, password_file | password | token, ca_file, insecure}",
        setting=name,
    )
