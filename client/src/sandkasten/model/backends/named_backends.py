"""Named backends: how a request names one, and which ones have a label. Pure.

A plugin may bring several backends of one kind: `KIND` is the one of its own name, and `KIND/NAME`
one that its settings configure by name. `KIND/zone=eu` is not a backend: it stands for one of the
named backends that have this label.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.backends.capabilities import Capabilities

# Part of the name of a directory, and of lines of a log.
NAME: Final = lazy_pattern.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\Z")
LABEL_KEY: Final = lazy_pattern.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?\Z")
LABEL_VALUE: Final = lazy_pattern.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")

MOST_CHARACTERS: Final = 2048
"""In what a request names: sixteen labels of the longest kind. Each of them is compared."""


@dataclass(frozen=True, slots=True)
class NamedBackendRules:
    """The labels of a named backend, and how many sandboxes it may have."""

    labels: Mapping[str, str] = field(default_factory=dict)
    max_sandboxes: int | None = None
    """Most sandboxes at once, including those of the warm pool; None: any number."""


def kind_of(backend: str) -> str:
    """Return KIND for `KIND/NAME`, and every other name as it is."""
    return backend.partition("/")[0]


def own_name(backend: str) -> str:
    """Return NAME for `KIND/NAME`, and every other name as it is."""
    return backend.partition("/")[2] or backend


def check_length(backend: str) -> None:
    """Raise InvalidRequest for what is too long to be a backend or a choice by labels."""
    if len(backend) > MOST_CHARACTERS:
        raise InvalidRequest(
            f"backend {shown(backend)} has more than {MOST_CHARACTERS} characters",
            hint="name a backend; sandkasten doctor --all lists them",
            field="backend",
        )


def is_by_label(backend: str) -> bool:
    """Return whether a request chooses by label, and does not name a backend."""
    return "=" in backend.partition("/")[2]


def settings_section(backend: str, kind: Capabilities) -> str:
    """Return where the settings of a backend are, as the operator writes it. `kind`: the
    capabilities of its kind.
    """
    return "backends." + backend.replace("/", f".{kind.named_by}.")


def named_setting(backend: str, kind: Capabilities) -> str:
    """Return the setting with the named backends of this kind."""
    return f"backends.{kind_of(backend)}.{kind.named_by}"


def labels_of(backend: str, kind: Capabilities) -> dict[str, str] | None:
    """Return the labels of `KIND/zone=eu,disk=ssd`; None if the request names a backend. Raise
    InvalidRequest.
    """
    if not is_by_label(backend):
        return None
    name, _, pairs = backend.partition("/")
    labels: dict[str, str] = {}
    for pair in pairs.split(","):
        key, _, value = pair.partition("=")
        if not LABEL_KEY.match(key) or not LABEL_VALUE.match(value) or key in labels:
            raise InvalidRequest(
                f"backend {shown(backend)} is not a valid choice of {kind.platform}s by label",
                hint=f"write {name}/KEY=VALUE, or {name}/KEY=VALUE,KEY=VALUE with different keys",
                field="backend",
            )
        labels[key] = value
    return labels


def has_labels(rules: NamedBackendRules, labels: Mapping[str, str]) -> bool:
    return all(rules.labels.get(key) == value for key, value in labels.items())


def of_kind(named: Mapping[str, NamedBackendRules], backend: str) -> dict[str, NamedBackendRules]:
    """Return the named backends that are of the same kind as a backend."""
    kind = kind_of(backend)
    return {name: rules for name, rules in named.items() if kind_of(name) == kind}


def labelled(
    backend: str,
    kind: Capabilities,
    named: Mapping[str, NamedBackendRules],
    labels: Mapping[str, str],
) -> list[str]:
    """Return the named backends of this kind with these labels, in the order of the settings. Raise
    InvalidRequest.
    """
    siblings = of_kind(named, backend)
    matching = [name for name, rules in siblings.items() if has_labels(rules, labels)]
    if matching:
        return matching
    wanted = written(labels)
    known_labels = {
        f"{key}={value}" for rules in siblings.values() for key, value in rules.labels.items()
    }
    raise InvalidRequest(
        f"no {kind.platform} has the label{'s' if len(labels) > 1 else ''} {wanted}",
        hint=did_you_mean(wanted, known_labels)
        if known_labels
        else f"add the label to a {kind.platform} in {named_setting(backend, kind)}",
        field="backend",
    )


def written(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def unknown_name(
    backend: str, kind: Capabilities, named: Mapping[str, NamedBackendRules]
) -> InvalidRequest:
    """Return the error for a request that names a backend that is not in the settings."""
    siblings, main, name = of_kind(named, backend), kind_of(backend), own_name(backend)
    if any(name in rules.labels for rules in siblings.values()):
        hint = f"write {main}/{name}=VALUE to choose by label"
    elif siblings:
        hint = did_you_mean(backend, (main, *siblings))
    else:
        hint = f"add it to {named_setting(backend, kind)}, or request backend {main}"
    message = f"{kind.platform} {shown(name)} is not in the settings"
    return InvalidRequest(message, hint=hint, field="backend")
