"""The setting `policy.images.signatures`: whose signatures images need.

In the file it is a list of rules, in the environment the same as JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration
from sandkasten.images.signatures.trust_rules import TrustRule
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

_STRINGS: Final = ("key", "identity", "issuer", "root", "log_key")
_KEYS: Final = ("images", *_STRINGS, "unsigned")
_MAX_RULES: Final = 100


def parse_signatures(name: str, value: object) -> tuple[TrustRule, ...]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as exc:
            raise _invalid(name, "must be valid JSON") from exc
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list) or len(value) > _MAX_RULES:
        raise _invalid(name, "must be a list of rules")
    return tuple(_rule(f"{name}[{at}]", one) for at, one in enumerate(value))


def show_signatures(rules: Sequence[TrustRule]) -> list[str]:
    return [str(one) for one in rules]


def _rule(name: str, value: object) -> TrustRule:
    if not isinstance(value, dict):
        raise _invalid(name, "must be a mapping")
    for key in value:
        if key not in _KEYS:
            raise InvalidConfiguration(
                f"{name} has an unknown key {shown(str(key))}",
                hint=did_you_mean(str(key), _KEYS),
                setting=name,
            )
    strings = {key: _string(name, key, value[key]) for key in _STRINGS if key in value}
    unsigned = value.get("unsigned", False)
    images = value.get("images", ["*"])
    images = [images] if isinstance(images, str) else images
    if not isinstance(images, list) or not images or not all(_is_name(one) for one in images):
        raise _invalid(name, "must have names of images in images")
    ways = [
        way
        for way, there in (
            ("key", "key" in strings),
            ("identity", bool({"identity", "issuer", "root", "log_key"} & strings.keys())),
            ("unsigned", unsigned is True),
        )
        if there
    ]
    if unsigned not in (True, False) or len(ways) != 1:
        raise _invalid(name, "must have exactly one of key, identity and unsigned: true")
    if ways == ["identity"] and not {"identity", "issuer", "root"} <= strings.keys():
        raise _invalid(name, "must have identity, issuer and root")
    if ways == ["unsigned"] and "images" not in value:
        raise _invalid(name, "must name the images that may be unsigned")
    return TrustRule(images=tuple(images), unsigned=unsigned, **strings)


def _string(name: str, key: str, value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise _invalid(name, f"must have a printable string in {key}")
    return value


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 300 and value.isprintable()


def _invalid(name: str, what: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{name} {what}",
        hint="write {images: [name], key: FILE}, or {identity, issuer, root: FILE, log_key: FILE}",
        setting=name,
    )
