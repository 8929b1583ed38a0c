"""Runs of agents and workflows: what was asked, how far it came, how it ended. Values only.

A run is open until it has one of the ends. Whoever works on an open run holds its claim; an open
run whose claim nobody holds was left by a process that died.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from sandkasten.model.tenancy import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Mapping

RunKind = Literal["agent", "workflow"]
RunStatus = Literal["running", "completed", "failed", "cancelled", "lost"]
"""lost: the process that worked on it died, and it cannot be gone on with."""

ENDS: Final = frozenset({"completed", "failed", "cancelled", "lost"})
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def new_run_id() -> str:
    """A part of session keys, so letters and digits alone."""
    return "run_" + secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What a run took, with all it called."""

    steps: int = 0
    """Answers of a model, or steps of a workflow."""
    tool_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RunRow:
    id: str
    kind: RunKind
    name: str
    """The agent's or the workflow's."""
    created_at: float
    tenant: str = DEFAULT_TENANT
    status: RunStatus = "running"
    input: Any = None
    """JSON: `{"task": …, "variables": {…}}` of an agent, anything of a workflow."""
    output: Any = None
    """JSON, or a text where the agent has no schema for its output."""
    error: Mapping[str, Any] | None = None
    """code, message, hint; None unless it failed."""
    ended_at: float | None = None
    parent_id: str | None = None
    """The run that asked for this one."""
    workflow_run_id: str | None = None
    key_id: str | None = None
    usage: RunUsage = field(default_factory=RunUsage)
    source: str = ""
    """The file it was begun with, so that a change of the file does not change a run."""
    state: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """JSON: what is needed to go on after a crash; empty when nothing is."""

    @property
    def ended(self) -> bool:
        return self.status in ENDS


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One thing that happened, for those who watch and for the transcript. `seq` is from 1."""

    seq: int
    at: float
    type: str
    """run.started, agent.message, tool.called, tool.answered, step.started, step.ended, …"""
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgentRunRequest:
    agent: str
    """A name in the library."""
    task: str = ""
    variables: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """Values for the template. Nothing in them can name a run or a sandbox."""
    tenant: str = DEFAULT_TENANT
    key_id: str | None = None
    source: str | None = None
    """The text of a prompt file, in place of one in the library."""


@dataclass(frozen=True, slots=True)
class WorkflowRunRequest:
    workflow: str
    """An id in the library."""
    input: Any = None
    tenant: str = DEFAULT_TENANT
    key_id: str | None = None
    source: str | None = None
    """The text of a workflow file, in place of one in the library."""


@dataclass(frozen=True, slots=True)
class Definition:
    """An agent or a workflow of the library, described."""

    kind: RunKind
    name: str
    description: str = ""
    path: str = ""
    source: str = ""
    fields: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """JSON: model, mode, tools, input and output schema; or steps and graph."""
    warnings: tuple[str, ...] = ()
    error: Mapping[str, Any] | None = None
    """code, message, hint, when the file cannot be used."""
