"""What a backend says of itself before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandkasten.model.limits import Unenforced


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of `doctor`: what is needed, whether it is there, and what to do when it is not."""

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
