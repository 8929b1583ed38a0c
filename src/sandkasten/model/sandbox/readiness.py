"""What a backend reports about itself before it is used."""

from __future__ import annotations

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.limits import Unenforced  # noqa: TC001  (json_codec reads it)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of `doctor`: a requirement, whether it is met, and the remedy."""

    name: str
    ok: bool
    state: str
    remedy: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    reason: str = ""
    remedy: str = ""
    requirements: tuple[Requirement, ...] = ()
    unenforced: tuple[Unenforced, ...] = ()


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
