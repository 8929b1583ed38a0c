"""What an agent's file asks of its sandbox: the `sandbox:` of its frontmatter, as a value.

An agent can only ask. What it gets is decided where the sandbox is made, by the operator's policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.sandbox.sandbox_requests import Number

Mode = Literal["compute", "code"]
_NO_NUMBERS: Final[Mapping[str, Number]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SandboxWish:
    mode: Mode = "compute"
    runtime: str | None = None
    """python, node, bash, linux, or an image; None: python to compute, linux to code."""
    image: str | None = None
    """Wins over the runtime's own."""
    session: str = "default"
    """default, workflow: the workflow run's; isolated, agent: this agent run's; else a name."""
    timeout_s: float | None = None
    """Of one run or one command."""
    network: bool = False
    network_allow: tuple[str, ...] = ()
    pip_packages: tuple[str, ...] = ()
    npm_packages: tuple[str, ...] = ()
    profile: str | None = None
    limits: Mapping[str, Number] = field(default_factory=lambda: _NO_NUMBERS)
    """By public names, see `model.policy`; those of the outer level are here too."""
    idle_timeout_s: float | None = None
