"""The setting `policy.backends`: which backend a request gets that names none.

In the file it is a list of rules, in the environment the same as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.backends.backend_rules import BackendRule
from sandkasten.settings.setting_parsers import rule_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LISTS: Final = {"image": "images", "tenant": "tenants", "agent": "agents"}
_KEYS: Final = (*_LISTS, "label", "use", "only")
_MAX_NAMES: Final = 100
_HINT: Final = (
    "write {image: PATTERN, label: {NAME: PATTERN}, tenant: NAME, agent: NAME, "
    "use: BACKEND or [BACKEND, …], only: true}; all but use may be left out"
)


def backend_rules(
    backend: Callable[[str, str], str],
) -> Callable[[str, object], tuple[BackendRule, ...]]:
    """Return the parser. `backend` checks the name of a backend, or a choice by label."""

    def parse(name: str, value: object) -> tuple[BackendRule, ...]:
        rules = rule_list(name, value, _KEYS, _HINT)
        return tuple(_rule(rule_name, rule, backend) for rule_name, rule in rules.items())

    return parse


def show_backend_rules(rules: Sequence[BackendRule]) -> list[str]:
    return [str(rule) for rule in rules]


def _rule(name: str, value: Mapping[str, Any], backend: Callable[[str, str], str]) -> BackendRule:
    if "use" not in value:
        raise _invalid(name, "must have a backend, or a list of backends, in use")
    use = tuple(backend(f"{name}.use", choice) for choice in _names(f"{name}.use", value["use"]))
    if len(set(use)) != len(use):
        raise _invalid(f"{name}.use", "must name each backend once")
    only = value.get("only", False)
    if not isinstance(only, bool):
        raise _invalid(f"{name}.only", "must be true or false")
    lists = {
        field: _names(f"{name}.{key}", value[key]) for key, field in _LISTS.items() if key in value
    }
    return BackendRule(use=use, labels=_labels(name, value.get("label", {})), only=only, **lists)


def _names(name: str, value: object) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not 1 <= len(names) <= _MAX_NAMES:
        raise _invalid(name, "must be a name or a list of names")
    if not all(_is_text(item) for item in names):
        raise _invalid(name, "must have printable names of at most 300 characters")
    return tuple(names)


def _labels(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > _MAX_NAMES:
        raise _invalid(f"{name}.label", "must be a mapping of labels and their values")
    for key, pattern in value.items():
        if not _is_text(key) or not _is_text(pattern):
            raise _invalid(f"{name}.label", "must have strings; a number must be in quotes")
    return dict(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 300 and value.isprintable()


def _invalid(name: str, what: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"{name} {what}", hint=_HINT, setting=name)
