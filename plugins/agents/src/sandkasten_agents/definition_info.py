"""Conversion of agent and workflow files, valid or not, into `Definition` values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sandkasten.errors import RequestError
from sandkasten.model.runs.run_values import Definition
from sandkasten_agents.definitions.prompt_file import parse_agent
from sandkasten_agents.definitions.sandbox_field import OPTION_FIELDS
from sandkasten_agents.transcript_bounds import error_fields
from sandkasten_agents.workflows.workflow_file import inspect
from sandkasten_agents.workflows.workflow_graph import mermaid, tree
from sandkasten_agents.workflows.workflow_plan import agents_of, every_step

if TYPE_CHECKING:
    from sandkasten_agents.definitions.library import LibraryEntry
    from sandkasten_agents.definitions.prompt_file import Agent
    from sandkasten_agents.workflows.workflow_plan import Step, Workflow
    from sandkasten_tools.calls.agent_sandbox import AgentSandbox


def described_entry(entry: LibraryEntry) -> Definition:
    error = entry.error
    agent = entry.agent
    return Definition(
        kind=entry.kind,
        name=entry.name,
        description=agent.description if agent is not None else "",
        path=str(entry.path),
        source=entry.source,
        fields={} if agent is None else _agent_details(agent),
        warnings=agent.warnings if agent is not None else (),
        error=None
        if error is None
        else {"code": error.code, "message": error.message, "hint": error.hint},
    )


def described_agent(source: str, name: str = "", path: str = "") -> Definition:
    try:
        agent = parse_agent(source, name)
    except RequestError as exc:
        return Definition("agent", name, path=path, source=source, error=error_fields(exc))
    return Definition(
        "agent",
        agent.name,
        agent.description,
        path,
        source,
        _agent_details(agent),
        agent.warnings,
    )


def described_workflow(source: str, name: str = "", path: str = "") -> Definition:
    inspected = inspect(source)
    warnings = tuple(issue.describe() for issue in inspected.warnings)
    workflow = inspected.workflow
    if workflow is None:
        first = inspected.errors[0]
        error: dict[str, Any] = {
            "code": "INVALID_WORKFLOW",
            "message": f"{first.path}: {first.message}" if first.path else first.message,
            "hint": first.hint,
            "details": {"issues": [str(issue) for issue in inspected.errors]},
        }
        issues = {"issues": [issue.as_json() for issue in (*inspected.errors, *inspected.warnings)]}
        return Definition("workflow", name, "", path, source, issues, warnings, error)
    return Definition(
        "workflow",
        workflow.id,
        workflow.description,
        path,
        source,
        {**_fields(workflow), "issues": [issue.as_json() for issue in inspected.warnings]},
        warnings,
    )


def _agent_details(agent: Agent) -> dict[str, Any]:
    """Return the fields of an agent without its source, as JSON."""
    sandbox = agent.sandbox
    return {
        "slug": agent.slug,
        "model": agent.model,
        "mode": None if sandbox is None else sandbox.mode,
        "sandbox": None if sandbox is None else _sandbox(sandbox),
        "tools": None if agent.tools is None else list(agent.tools),
        "agents": list(agent.agents),
        "input_schema": agent.input_schema,
        "output_schema": agent.output_schema,
        "output_format": agent.output_format,
        "max_steps": agent.max_steps,
        "max_tokens": agent.max_tokens,
        "timeout_seconds": agent.timeout_s,
    }


def _sandbox(sandbox: AgentSandbox) -> dict[str, Any]:
    options = sandbox.options
    return {
        "runtime": sandbox.runtime,
        "session": sandbox.session,
        "timeout_seconds": sandbox.timeout_seconds,
        **{name: _json(getattr(options, name)) for name in OPTION_FIELDS},
        "network": options.network not in (None, "none"),
    }


def _json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _fields(workflow: Workflow) -> dict[str, Any]:
    steps = list(every_step(workflow.body))
    return {
        "title": workflow.name,
        "version": workflow.version,
        "dialect": workflow.dialect,
        "start": workflow.body.start,
        "steps": [_step(step) for step in steps],
        "agents": list(agents_of(workflow)),
        "input_schema": dict(workflow.input_schema),
        "output_schema": dict(workflow.output_schema),
        "timeout_seconds": workflow.timeout_s,
        "graph": {
            "nodes": [{"id": step.id, "type": step.type, "agent": step.agent} for step in steps],
            "edges": [edge for step in steps for edge in _edges(step)],
        },
        "mermaid": mermaid(workflow),
        "tree": tree(workflow),
    }


def _step(step: Step) -> dict[str, Any]:
    return {"id": step.id, "type": step.type, "agent": step.agent or None, "next": step.next}


def _edges(step: Step) -> list[dict[str, Any]]:
    edges: list[dict[str, Any]] = [
        {"from": step.id, "to": choice.next, "when": choice.when} for choice in step.choices
    ]
    if step.next is not None:
        edges.append({"from": step.id, "to": step.next, "when": None})
    for name, body in step.bodies():
        edges.append({"from": step.id, "to": body.start, "when": name})
    return edges
