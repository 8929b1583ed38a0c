"""The setting `images.registries`: credentials and transport of each registry.

In the file it is a mapping of hosts, in the environment the same as JSON. `config show` prints
which keys are set and never a value: some of them are secrets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration
from sandkasten.model import lazy_pattern
from sandkasten.model.spelling import shown
from sandkasten.settings.setting_parsers import check_keys, from_json
from sandkasten_runtime.images.registry.registry_credentials import Access

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOST: Final = lazy_pattern.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?\Z")
_STRINGS: Final = ("username", "password", "password_file", "token", "ca_file")
_KEYS: Final = (*_STRINGS, "insecure")
_HINT: Final = "write host: {username, password_file | password | token, ca_file, insecure}"


def parse_registries(name: str, value: object) -> dict[str, Access]:
    value = from_json(name, value, _HINT)
    if not isinstance(value, dict):
        raise _invalid(name, "must be a mapping of hosts")
    access: dict[str, Access] = {}
    for host, entry in value.items():
        if not isinstance(host, str) or not _HOST.match(host):
            raise _invalid(name, f"has {shown(str(host))}, which is not a valid host")
        if not isinstance(entry, dict):
            raise _invalid(name, f"must have a mapping under {host}")
        access[host] = _access(name, host, entry)
    return access


def show_registries(registries: Mapping[str, Access]) -> list[str]:
    shown: list[str] = []
    for host, access in registries.items():
        keys = [key for key in sorted(_KEYS) if getattr(access, key)]
        shown.append(f"{host} ({', '.join(keys)})")
    return shown


def _access(name: str, host: str, entry: Mapping[object, object]) -> Access:
    check_keys(f"{name}.{host}", entry, _KEYS)
    strings: dict[str, str] = {}
    for key in _STRINGS:
        written = entry.get(key, "")
        if not isinstance(written, str) or not written.isprintable():
            raise _invalid(name, f"must have a printable string in {host}.{key}")
        strings[key] = written
    insecure = entry.get("insecure", False)
    if not isinstance(insecure, bool):
        raise _invalid(name, f"must have true or false in {host}.insecure")
    ways = [key for key in ("password", "password_file", "token") if strings[key]]
    if len(ways) > 1:
        raise _invalid(name, f"has {' and '.join(ways)} for {host}, which exclude each other")
    if bool(strings["username"]) != (ways in (["password"], ["password_file"])):
        raise _invalid(name, f"requires both username and password for {host}, or neither")
    return Access(**strings, insecure=insecure)


def _invalid(name: str, what: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"{name} {what}", hint=_HINT, setting=name)
