"""The operator's rules that choose a backend, `policy.backends`. Pure.

The first rule that matches a request decides. A list in `use` is a fallback: the next backend is
tried only when the one before it is unavailable, and none of them isolates less than the first.
"""

from __future__ import annotations

from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration, PolicyDenied
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.isolation_levels import weakest_of
from sandkasten.model.spelling import shown, wildcard_match

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SETTING: Final = "policy.backends"
_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RuleSubject:
    """What of a request the rules look at."""

    images: tuple[str, ...] = ()
    """All spellings of the image's name."""
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)
    tenant: str = ""
    agent: str | None = None
    """The installed agent that the request comes from; None: not from an agent, or from one whose
    file the client sent, which may have any name.
    """
    unnamed: bool = False
    """Whether the image is named by its id, and none of its names is known."""


@dataclass(frozen=True, slots=True)
class BackendRule:
    """Conditions, which must all be met, and the backends to use then, in order.

    `*` in a pattern stands for any characters. One of several patterns must match, and of several
    labels all.
    """

    use: tuple[str, ...]
    images: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)
    tenants: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    only: bool = False
    """Whether a request that names a backend outside `use` is refused."""

    def matches(self, subject: RuleSubject) -> bool:
        agents = () if subject.agent is None else (subject.agent,)
        return (
            _any(self.images, subject.images)
            and _any(self.tenants, (subject.tenant,))
            and _any(self.agents, agents)
            and all(
                name in subject.labels and wildcard_match(pattern, subject.labels[name])
                for name, pattern in self.labels.items()
            )
        )

    def __str__(self) -> str:
        conditions = [
            *(("image " + ", ".join(self.images),) if self.images else ()),
            *(f"label {name}={pattern}" for name, pattern in self.labels.items()),
            *(("tenant " + ", ".join(self.tenants),) if self.tenants else ()),
            *(("agent " + ", ".join(self.agents),) if self.agents else ()),
        ]
        used = ", then ".join(self.use) + (" only" if self.only else "")
        return f"{' and '.join(conditions) or 'any request'}: {used}"


@dataclass(frozen=True, slots=True)
class Matched:
    """The rule that decides about a request."""

    name: str
    """Its place in the settings, such as `policy.backends[0]`."""
    rule: BackendRule


def match(rules: Sequence[BackendRule], subject: RuleSubject) -> Matched | None:
    """Return the first rule that matches; None if none does. Raise PolicyDenied if that depends on
    the name of an image of which only the id is known.
    """
    for at, rule in enumerate(rules):
        if rule.matches(subject):
            return Matched(f"{SETTING}[{at}]", rule)
        if subject.unnamed and rule.images and replace(rule, images=()).matches(subject):
            raise PolicyDenied(
                f"{SETTING}[{at}] compares names of images, and no name is known for image "
                f"{shown(subject.images[0])}",
                hint="use the name of the image instead of its id",
                rule=f"{SETTING}[{at}]",
            )
    return None


def in_order(
    rule: BackendRule, strength: Callable[[str], int], minimum: str | None = None
) -> tuple[str, ...]:
    """Return the backends that a request may get by a rule, in order. None of them isolates less
    than the first one or than the operator's minimum, whatever the rule says.
    """
    least = max(strength(rule.use[0]), 0 if minimum is None else weakest_of(minimum))
    return tuple(backend for backend in rule.use if strength(backend) >= least)


def check_rules(
    rules: Sequence[BackendRule],
    strength: Callable[[str], int],
    isolation: str | None = None,
    minimum: str | None = None,
) -> None:
    """Raise InvalidConfiguration for a rule that could weaken the isolation of a request.

    `strength` returns how much a backend isolates; `isolation` and `minimum` are the settings
    `policy.isolation` and `policy.isolation_minimum`.
    """
    if rules and isolation == "strongest":
        raise InvalidConfiguration(
            f"policy.isolation is strongest, which leaves nothing for {SETTING} to choose",
            hint=f"leave policy.isolation or {SETTING} out",
            setting=SETTING,
        )
    demanded = [
        (name, level)
        for name, level in (
            ("policy.isolation", isolation),
            ("policy.isolation_minimum", minimum),
        )
        if level is not None
    ]
    for at, rule in enumerate(rules):
        setting = f"{SETTING}[{at}].use"
        first = rule.use[0]
        for name, level in demanded:
            weak = next(
                (backend for backend in rule.use if strength(backend) < weakest_of(level)), None
            )
            if weak is not None:
                raise InvalidConfiguration(
                    f"{setting}: backend {weak} isolates less than {name} ({level}) demands",
                    hint=f"remove {weak}, or lower {name}",
                    setting=setting,
                )
        for fallback in rule.use[1:]:
            if strength(fallback) < strength(first):
                raise InvalidConfiguration(
                    f"{setting}: backend {fallback} isolates less than {first}, "
                    "so it must not replace it",
                    hint=f"remove {fallback}, or write it before {first}",
                    setting=setting,
                    backend=fallback,
                    first=first,
                )


def _any(patterns: Sequence[str], values: Sequence[str]) -> bool:
    """Return whether a pattern matches a value; also if there is no pattern."""
    return not patterns or any(
        wildcard_match(pattern, text) for pattern in patterns for text in values
    )
