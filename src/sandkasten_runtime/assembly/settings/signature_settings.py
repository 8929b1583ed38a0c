"""The setting `policy.images.signatures`: whose signatures images need.

In the file it is a list of rules, in the environment the same as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.images.trust_rules import TrustRule
from sandkasten.settings.setting_parsers import rule_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STRINGS: Final = ("key", "identity", "issuer", "root", "log_key")
_KEYS: Final = ("images", *_STRINGS, "unsigned")
_HINT: Final = "write {images: [name], key: FILE}, or {identity, issuer, root: FILE, log_key: FILE}"


def parse_signatures(name: str, value: object) -> tuple[TrustRule, ...]:
    rules = rule_list(name, value, _KEYS, _HINT)
    return tuple(_rule(rule_name, rule) for rule_name, rule in rules.items())


def show_signatures(rules: Sequence[TrustRule]) -> list[str]:
    return [str(rule) for rule in rules]


def _rule(name: str, value: Mapping[str, Any]) -> TrustRule:
    strings = {key: _string(name, key, value[key]) for key in _STRINGS if key in value}
    unsigned = value.get("unsigned", False)
    images = value.get("images", ["*"])
    images = [images] if isinstance(images, str) else images
    if not isinstance(images, list) or not images or not all(_is_name(image) for image in images):
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
    return InvalidConfiguration(f"{name} {what}", hint=_HINT, setting=name)
