"""Runs of agents and workflows: requests, progress and results. Values only.

A run is open until it ends. The process that works on an open run holds its claim; an open run
without a claim was left by a process that died.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping  # noqa: TC003  (the codec reads the annotations)
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import DEFAULT_TENANT, TenantQuota
from sandkasten.model.json_codec import Timestamp  # noqa: TC001

RunKind = Literal["agent", "workflow"]
RunStatus = Literal["running", "completed", "failed", "cancelled", "lost"]
"""lost: the process that worked on it died, and it cannot be gone on with."""

ENDS: Final = frozenset({"completed", "failed", "cancelled", "lost"})
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def new_run_id() -> str:
    """Return a new id. It is a part of session keys, so it has letters and digits only."""
    return "run_" + secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What a run used, including the agents it called."""

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
    created_at: Timestamp
    tenant: str = DEFAULT_TENANT
    status: RunStatus = "running"
    input: Any = None
    """JSON: `{"task": …, "variables": {…}}` of an agent, anything of a workflow."""
    output: Any = None
    """JSON, or a text where the agent has no schema for its output."""
    error: Mapping[str, Any] | None = None
    """code, message, hint; None unless it failed."""
    ended_at: Timestamp | None = None
    parent_id: str | None = None
    """The run that started this one."""
    workflow_run_id: str | None = None
    key_id: str | None = None
    quota: TenantQuota | None = None
    """What its tenant might have when it began; also for what is gone on with after a crash."""
    files: bool = True
    """Whether its creator may use its tenant's stored files, and so may the run."""
    retain_s: float | None = None
    """How long its sessions are kept after its end; 0: not at all, None: as files of agents set it.
    """
    retained: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """Sessions that were kept at its end: their sandboxes by session key."""
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
    """One event of a run, for followers and for the transcript. `seq` starts at 1."""

    seq: int
    at: Timestamp
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
    quota: TenantQuota | None = None
    source: str | None = None
    """The text of a prompt file, in place of one in the library."""
    files: bool = True
    """Whether the caller may use the stored files of the tenant."""
    retain_seconds: float | None = None
    """How long its sessions are kept after its end; None: as its file sets it."""


@dataclass(frozen=True, slots=True)
class WorkflowRunRequest:
    workflow: str
    """An id in the library."""
    input: Any = None
    tenant: str = DEFAULT_TENANT
    key_id: str | None = None
    quota: TenantQuota | None = None
    source: str | None = None
    """The text of a workflow file, in place of one in the library."""
    files: bool = True
    """Whether the caller may use the stored files of the tenant."""
    retain_seconds: float | None = None
    """How long its shared sessions are kept after its end; None: as its file sets it."""


@dataclass(frozen=True, slots=True)
class Definition:
    """An agent or a workflow of the library."""

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


def public_run(row: RunRow) -> dict[str, Any]:
    """Return the fields of a run in the public contract, except its times."""
    usage = row.usage
    error = None if row.error is None else dict(row.error)
    named = {f"{row.kind}_id": row.name, f"{row.kind}_name": row.name}
    fields: dict[str, Any] = {
        "id": row.id,
        "run_id": row.id,
        "kind": row.kind,
        "name": row.name,
        **named,
        "status": row.status,
        "done": row.ended,
        "input": row.input,
        "output": row.output,
        "error": error,
        "retained": dict(row.retained),
        "parent_id": row.parent_id,
        "workflow_run_id": row.workflow_run_id,
        "usage": {
            "steps": usage.steps,
            "tool_calls": usage.tool_calls,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }
    if row.kind == "agent" and isinstance(row.input, dict):
        fields["task"] = row.input.get("task", "")
        fields["variables"] = row.input.get("variables") or {}
    if row.ended_at is not None:
        fields["duration_ms"] = max(0, round((row.ended_at - row.created_at) * 1000))
    return fields
