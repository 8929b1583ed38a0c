"""Checks made before a run starts. Everything that can be rejected is rejected here.

AgentNotFound, WorkflowNotFound, InvalidAgent and InvalidWorkflow concern the files, PolicyDenied
what the operator forbids, InvalidConfiguration a missing model endpoint, InvalidRequest an input
that does not match its schema. Nothing is created, and no model is called.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.agents.definition_info import described_workflow
from sandkasten.agents.definitions import json_schemas
from sandkasten.agents.definitions.prompt_file import parse_agent, slug
from sandkasten.agents.definitions.prompt_render import render
from sandkasten.agents.policy_check import check_sandbox
from sandkasten.agents.transcript_bounds import error_fields
from sandkasten.agents.workflows.workflow_file import inspect, parse_workflow
from sandkasten.agents.workflows.workflow_plan import agents_of
from sandkasten.errors import AgentNotFound, InvalidRequest, SandkastenError, WorkflowNotFound
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from sandkasten.agents.definitions.library import Library
    from sandkasten.agents.definitions.prompt_file import Agent
    from sandkasten.agents.loop.agent_loop import AgentLoop
    from sandkasten.agents.workflows.workflow_plan import Workflow
    from sandkasten.model.runs.run_values import (
        AgentRunRequest,
        Definition,
        RunKind,
        WorkflowRunRequest,
    )
    from sandkasten.model.sandbox.policy import Policy


@dataclass(frozen=True, slots=True)
class PreparedWorkflow:
    workflow: Workflow
    source: str
    warnings: tuple[str, ...] = ()


class RunPreparation:
    def __init__(self, library: Library, loop: AgentLoop, policy: Policy) -> None:
        self._library = library
        self._loop = loop
        self._policy = policy

    async def agent(self, request: AgentRunRequest) -> Agent:
        return await asyncio.to_thread(self._agent, request)

    async def workflow(self, request: WorkflowRunRequest) -> PreparedWorkflow:
        return await asyncio.to_thread(self._workflow, request)

    async def definitions(self, kind: RunKind) -> list[Definition]:
        return await asyncio.to_thread(self._definitions, kind)

    async def definition(self, kind: RunKind, name: str) -> Definition:
        return await asyncio.to_thread(self._definition, kind, name)

    async def checked(self, found: Definition) -> Definition:
        """Return the definition, with an error if it could not be run on this machine."""
        return await asyncio.to_thread(self._checked, found)

    def _agent(self, request: AgentRunRequest) -> Agent:
        if request.source is not None:
            agent = parse_agent(request.source, request.agent)
        else:
            agent = self._library.agent(request.agent)
        self._check_allowed(agent)
        render(agent, request.task, request.variables)
        return agent

    def _check_allowed(self, agent: Agent) -> None:
        """Check the agent and all agents it may call: a failure in the middle of a run costs
        more.
        """
        # Visit each agent once: agents may all name one another.
        seen, waiting = {agent.name}, [agent]
        while waiting:
            one = waiting.pop()
            if one.sandbox is not None:
                check_sandbox(one.sandbox, self._policy)
            self._loop.check(one)
            for name in one.agents:
                other = self._library.agent(name)
                if other.name not in seen:
                    seen.add(other.name)
                    waiting.append(other)

    def _workflow(self, request: WorkflowRunRequest) -> PreparedWorkflow:
        source = request.source
        if source is None:
            source = self._source(request.workflow)
        found = inspect(source)
        workflow = found.workflow or parse_workflow(source)
        for name in agents_of(workflow):
            self._check_allowed(self._library.agent(name))
        problems = json_schemas.check(request.input, workflow.input_schema)
        if workflow.input_schema and problems:
            raise InvalidRequest(
                f"the input does not match the schema of {workflow.id}: {'; '.join(problems)}",
                hint="check the input schema",
                field="input",
                problems=problems,
            )
        return PreparedWorkflow(workflow, source, tuple(one.describe() for one in found.warnings))

    def _source(self, name: str) -> str:
        """Return the source of a workflow, by its file name or its id."""
        try:
            return self._library.workflow_source(name)
        except WorkflowNotFound:
            for stem, source in self._library.workflow_sources():
                if described_workflow(source, stem).name == name:
                    return source
            raise

    def _definitions(self, kind: RunKind) -> list[Definition]:
        found = self._library.definitions(kind)
        if kind == "agent":
            return [*found]
        return [
            one if one.error is not None else described_workflow(one.source, one.name, one.path)
            for one in found
        ]

    def _definition(self, kind: RunKind, name: str) -> Definition:
        found = self._definitions(kind)
        for one in found:
            if name in (one.name, one.fields.get("slug")):
                return one
        wanted = slug(name[:200])
        for one in found:
            if wanted in (slug(one.name), slug(Path(one.path).stem)):
                return one
        missing = AgentNotFound if kind == "agent" else WorkflowNotFound
        raise missing(
            f"{kind} {shown(name)} not found",
            hint=did_you_mean(name, [one.name for one in found])
            if found
            else f"no {kind}s are installed; see the setting {kind}s.dirs",
            name=name[:200],
        )

    def _checked(self, found: Definition) -> Definition:
        try:
            if found.kind == "agent":
                self._check_allowed(parse_agent(found.source, found.name))
            else:
                for name in agents_of(parse_workflow(found.source)):
                    self._check_allowed(self._library.agent(name))
        except SandkastenError as exc:
            return replace(found, error=error_fields(exc))
        return found
