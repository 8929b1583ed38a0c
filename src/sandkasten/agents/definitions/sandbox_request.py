"""What an agent's file asks of its sandbox: the `sandbox:` of its frontmatter, as a value.

An agent can only ask. What it gets is decided where the sandbox is created, by the operator's
policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sandkasten.model.sandbox.sandbox_options import SandboxOptions

Mode = Literal["compute", "code"]


@dataclass(frozen=True, slots=True)
class AgentSandbox:
    """The request of one agent: how it uses its sandbox, and the options of that sandbox."""

    mode: Mode = "compute"
    runtime: str | None = None
    """python, node, bash, linux, or an image; None: python to compute, linux to code."""
    session: str = "default"
    """default, workflow: the workflow run's; isolated, agent: this agent run's; else a name."""
    timeout_seconds: float | None = None
    """Of one run or one command."""
    options: SandboxOptions = field(default_factory=SandboxOptions)
    """`image` wins over the runtime's own; `network` is None, `full` or `allow:host,…`."""
