"""Conversion of agent and workflow files, valid or not, into `Definition` values. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkasten.agents.definitions.library import agent_details
from sandkasten.agents.definitions.prompt_file import parse_agent
from sandkasten.agents.transcript_bounds import error_fields
from sandkasten.agents.workflows.workflow_file import inspect
from sandkasten.agents.workflows.workflow_graph import mermaid, tree
from sandkasten.agents.workflows.workflow_plan import agents_of, every_step
from sandkasten.errors import RequestError
from sandkasten.model.runs.run_values import Definition

if TYPE_CHECKING:
    from sandkasten.agents.workflows.workflow_plan import Step, Workflow


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
        agent_details(agent),
        agent.warnings,
    )


def described_workflow(source: str, name: str = "", path: str = "") -> Definition:
    found = inspect(source)
    warnings = tuple(one.describe() for one in found.warnings)
    workflow = found.workflow
    if workflow is None:
        first = found.errors[0]
        error: dict[str, Any] = {
            "code": "INVALID_WORKFLOW",
            "message": f"{first.path}: {first.message}" if first.path else first.message,
            "hint": first.hint,
            "details": {"issues": [str(one) for one in found.errors]},
        }
        issues = {"issues": [one.as_json() for one in (*found.errors, *found.warnings)]}
        return Definition("workflow", name, "", path, source, issues, warnings, error)
    return Definition(
        "workflow",
        workflow.id,
        workflow.description,
        path,
        source,
        {**_fields(workflow), "issues": [one.as_json() for one in found.warnings]},
        warnings,
    )


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
        {"from": step.id, "to": one.next, "when": one.when} for one in step.choices
    ]
    if step.next is not None:
        edges.append({"from": step.id, "to": step.next, "when": None})
    for name, body in step.bodies():
        edges.append({"from": step.id, "to": body.start, "when": name})
    return edges
