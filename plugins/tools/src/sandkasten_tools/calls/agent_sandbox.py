"""Sandbox request of an agent: the `sandbox:` field of its frontmatter as a value.

An agent can only request. The operator's policy decides when the sandbox is created.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.sandbox_options import SandboxOptions

Mode = Literal["compute", "code"]


@dataclass(frozen=True, slots=True)
class AgentSandbox:
    """How one agent uses its sandbox, and the options of that sandbox."""

    mode: Mode = "compute"
    runtime: str | None = None
    """python, node, bash, linux, or an image; None: python in compute mode, linux in code mode."""
    session: str = "default"
    """default or workflow: shared by the workflow run; isolated or agent: private to this agent
    run; otherwise a name.
    """
    retain_s: float = 0.0
    """How long its session is kept after the run that opened it."""
    timeout_seconds: float | None = None
    """Timeout of one run or one command."""
    network_field: str = field(default="sandbox.allow_network", compare=False)
    """The field of the file that requests a network, for messages."""
    options: SandboxOptions = field(default_factory=SandboxOptions)
    """`image` takes precedence over the runtime's image; `network` is None, `none`,
    `full` or `{allow: […]}`.
    """
