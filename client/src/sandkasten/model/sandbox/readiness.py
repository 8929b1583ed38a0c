"""What a backend reports about itself before it is used."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.limits import Unenforced  # noqa: TC001  (json_codec reads it)

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of `doctor`: a requirement, whether it is met, and the remedy."""

    name: str
    ok: bool
    state: str
    remedy: str = ""
    required: bool = True


def unusable_plugin(problem: str) -> Requirement:
    """Return the line about an installed plugin that cannot be used."""
    remedy = "remove or update the distribution that brings it"
    return Requirement("plugins", False, problem, remedy, required=False)


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    reason: str = ""
    remedy: str = ""
    requirements: tuple[Requirement, ...] = ()
    unenforced: tuple[Unenforced, ...] = ()
    lacks: tuple[str, ...] = ()
    """Fields of `BackendFeatures` that this machine does not have, although the backend does."""


def with_requirements(readiness: Readiness, more: Sequence[Requirement]) -> Readiness:
    """Return the readiness with further requirements; the first missing one is the reason."""
    readiness = replace(readiness, requirements=(*readiness.requirements, *more))
    missing = next(
        (requirement for requirement in more if requirement.required and not requirement.ok), None
    )
    if missing is None or not readiness.ready:
        return readiness
    reason = f"{missing.name}: {missing.state}"
    return replace(readiness, ready=False, reason=reason, remedy=missing.remedy)


@dataclass(frozen=True, slots=True)
class Tier:
    """One kind of sandbox on this machine: a backend with a kind of root and a profile."""

    name: str
    backend: str
    ready: bool
    image: str = ""
    profile: str = ""
    reason: str = ""
    remedy: str = ""
    default: bool = False
    """What a request gets that asks for nothing."""
    tried: bool = False
    """Sandboxes were really made; without that, `ready` is what the machine looks like."""
    warnings: tuple[Requirement, ...] = ()
    """Requirements that are not met and not required."""
    create_ms: float | None = None
    """The median of a few creates."""
