"""Checks made before a run starts. Everything that can be rejected is rejected here.

AgentNotFound, WorkflowNotFound, InvalidAgent and InvalidWorkflow concern the files, PolicyDenied
what the operator forbids, InvalidConfiguration a missing model endpoint, InvalidRequest an input
that does not match its schema. Nothing is created, and no model is called.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandkasten.errors import (
    AgentNotFound,
    InvalidRequest,
    NotFound,
    RequestError,
    SandkastenError,
    WorkflowNotFound,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.numbers import number
from sandkasten.model.sandbox.session_joins import differences
from sandkasten.model.spelling import did_you_mean, shown
from sandkasten_agents.definition_info import described_entry, described_workflow
from sandkasten_agents.definitions import json_schemas
from sandkasten_agents.definitions.prompt_file import parse_agent, slug
from sandkasten_agents.definitions.prompt_render import render
from sandkasten_agents.transcript_bounds import error_fields
from sandkasten_agents.workflows.issues import Issue
from sandkasten_agents.workflows.step_order import StepOrder
from sandkasten_agents.workflows.workflow_file import inspect, parse_workflow
from sandkasten_agents.workflows.workflow_plan import agents_of, every_step
from sandkasten_tools.calls.call_sandboxes import join_refused
from sandkasten_tools.calls.policy_check import check_retention, check_sandbox
from sandkasten_tools.calls.run_context import RunContext
from sandkasten_tools.calls.tool_requests import join_terms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.runs.run_values import (
        AgentRunRequest,
        Definition,
        RunKind,
        WorkflowRunRequest,
    )
    from sandkasten.model.sandbox.policy import Policy
    from sandkasten.model.sandbox.session_joins import SessionShape
    from sandkasten_agents.definitions.library import Library
    from sandkasten_agents.definitions.prompt_file import Agent
    from sandkasten_agents.loop.agent_loop import AgentLoop
    from sandkasten_agents.workflows.workflow_plan import Workflow
    from sandkasten_tools.calls.toolbox import Toolbox

# Steps named in the message about an agent.
_MOST_STEPS: Final = 10
# Pairs of agents that share a session; no person writes so many.
_MOST_PAIRS: Final = 10_000
_MOST_RETAIN_S: Final = 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class PreparedWorkflow:
    workflow: Workflow
    source: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Problem:
    """One reason why a definition cannot be run here."""

    where: str
    """The agent or the steps that it concerns; empty: the definition itself."""
    error: SandkastenError

    @property
    def issue(self) -> Issue:
        return Issue(self.error.code, self.where, self.error.message, self.error.hint)


@dataclass(slots=True)
class _Findings:
    """What a check found: the agents that a definition leads to, and the problems."""

    operator: bool
    """Whether the check is for a run of the operator, not of a key."""
    agents: dict[str, Agent] = field(default_factory=dict)
    calls: dict[str, list[str]] = field(default_factory=dict)
    """The agents that each of them may call."""
    steps: dict[str, list[str]] = field(default_factory=dict)
    """The steps of a workflow that name each of them."""
    problems: list[_Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, where: str, error: SandkastenError) -> None:
        reported = {(problem.error.code, problem.error.message) for problem in self.problems}
        if (error.code, error.message) not in reported:
            self.problems.append(_Problem(where, error))

    def steps_of(self) -> dict[str, list[str]]:
        """Return for each agent the steps that run it, also through other agents."""
        steps_by_agent: dict[str, list[str]] = {}
        for first, steps in self.steps.items():
            visited, waiting = {first}, [first]
            while waiting:
                name = waiting.pop()
                steps_by_agent.setdefault(name, []).extend(steps)
                called = [each for each in self.calls.get(name, ()) if each not in visited]
                visited.update(called)
                waiting += called
        return steps_by_agent

    def applied(self, definition: Definition) -> Definition:
        """Return the definition with all problems; the first one is its error."""
        warnings = (*definition.warnings, *self.warnings)
        if not self.problems:
            return replace(definition, warnings=warnings)
        first, more = self.problems[0].error, len(self.problems) - 1
        error = error_fields(first)
        if more:
            error["message"] += f" (and {more} more)"
            error["details"]["issues"] = [str(problem.issue) for problem in self.problems]
        fields = dict(definition.fields)
        if "issues" in fields:
            fields["issues"] = [
                *(problem.issue.as_json() for problem in self.problems),
                *fields["issues"],
            ]
        return replace(definition, fields=fields, warnings=warnings, error=error)


class RunPreparation:
    def __init__(self, library: Library, loop: AgentLoop, toolbox: Toolbox, policy: Policy) -> None:
        self._library = library
        self._loop = loop
        self._toolbox = toolbox
        self._policy = policy

    async def agent(self, request: AgentRunRequest) -> Agent:
        return await asyncio.to_thread(self._agent, request)

    async def workflow(self, request: WorkflowRunRequest) -> PreparedWorkflow:
        prepared, findings = await asyncio.to_thread(self._workflow, request)
        await self._check_sessions(findings, prepared.workflow, request.key_id)
        _raise_problem(findings)
        return prepared

    async def definitions(self, kind: RunKind) -> list[Definition]:
        return await asyncio.to_thread(self._definitions, kind)

    async def definition(self, kind: RunKind, name: str) -> Definition:
        return await asyncio.to_thread(self._definition, kind, name)

    async def checked(self, definition: Definition, key_id: str | None) -> Definition:
        """Return the definition with every reason why it could not be run on this machine.

        A missing model endpoint is a warning: it is no fault of the file. Nothing is fetched.
        """
        findings, workflow = await asyncio.to_thread(self._checked, definition, key_id)
        await self._check_images(findings, workflow=workflow is not None)
        if workflow is not None:
            await self._check_sessions(findings, workflow, key_id)
        return findings.applied(definition)

    def _agent(self, request: AgentRunRequest) -> Agent:
        if request.source is not None:
            agent = parse_agent(request.source, request.agent)
        else:
            agent = self._library.agent(request.agent)
        self._check_retention(request.retain_seconds)
        self._check_allowed(agent, request.key_id)
        render(agent, request.task, request.variables)
        return agent

    def _check_retention(self, retain_s: float | None) -> None:
        if retain_s is not None:
            number("session.retain", retain_s, low=0, high=_MOST_RETAIN_S)
            check_retention("session.retain", retain_s, self._policy)

    def _check_allowed(self, agent: Agent, key_id: str | None) -> None:
        """Check the agent and all agents it may call: a failure in the middle of a run costs
        more.
        """
        findings = _Findings(operator=key_id is None)
        self._visit(agent, "", findings)
        self._raise_first(findings)

    def _raise_first(self, findings: _Findings) -> None:
        _raise_problem(findings)
        for agent in findings.agents.values():
            self._loop.check_model(agent)

    def _visit(self, agent: Agent, where: str, findings: _Findings) -> None:
        waiting = [(agent, where)]
        while waiting:
            current, place = waiting.pop(0)
            # Visit each agent once: agents may all name one another.
            if current.name in findings.agents:
                continue
            findings.agents[current.name] = current
            try:
                if current.sandbox is not None:
                    check_sandbox(current.sandbox, self._policy, operator=findings.operator)
            except SandkastenError as exc:
                findings.add(place, exc)
            below = f"agent {current.name}"
            for name in current.agents:
                try:
                    called = self._library.agent(name)
                except SandkastenError as exc:
                    findings.add(below, exc)
                    continue
                findings.calls.setdefault(current.name, []).append(called.name)
                waiting.append((called, f"agent {name}"))
            try:
                self._loop.check(current)
            except SandkastenError as exc:
                findings.add(place, exc)

    def _visit_steps(self, workflow: Workflow, findings: _Findings) -> None:
        for name in agents_of(workflow):
            where = _steps_of(workflow, name)
            try:
                agent = self._library.agent(name)
            except SandkastenError as exc:
                findings.add(where, exc)
                continue
            steps = [step.id for step in every_step(workflow.body) if step.agent == name]
            findings.steps.setdefault(agent.name, []).extend(steps)
            self._visit(agent, where, findings)

    def _workflow(self, request: WorkflowRunRequest) -> tuple[PreparedWorkflow, _Findings]:
        source = request.source
        if source is None:
            source = self._source(request.workflow)
        inspected = inspect(source)
        workflow = inspected.workflow or parse_workflow(source)
        self._check_retention(request.retain_seconds)
        check_retention("session.retain", workflow.retain_s, self._policy)
        findings = _Findings(operator=request.key_id is None)
        self._visit_steps(workflow, findings)
        self._raise_first(findings)
        problems = json_schemas.check(request.input, workflow.input_schema)
        if workflow.input_schema and problems:
            raise InvalidRequest(
                f"the input does not match the schema of {workflow.id}: {'; '.join(problems)}",
                hint="check the input schema",
                field="input",
                problems=problems,
            )
        warnings = tuple(issue.describe() for issue in inspected.warnings)
        return PreparedWorkflow(workflow, source, warnings), findings

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
        definitions = [described_entry(entry) for entry in self._library.entries(kind)]
        if kind == "agent":
            return definitions
        return [
            definition
            if definition.error is not None
            else described_workflow(definition.source, definition.name, definition.path)
            for definition in definitions
        ]

    def _definition(self, kind: RunKind, name: str) -> Definition:
        definitions = self._definitions(kind)
        for definition in definitions:
            if name in (definition.name, definition.fields.get("slug")):
                return definition
        wanted = slug(name[:200])
        for definition in definitions:
            if wanted in (slug(definition.name), slug(Path(definition.path).stem)):
                return definition
        missing = AgentNotFound if kind == "agent" else WorkflowNotFound
        raise missing(
            f"{kind} {shown(name)} not found",
            hint=did_you_mean(name, [definition.name for definition in definitions])
            if definitions
            else f"no {kind}s are installed; see the setting {kind}s.dirs",
            name=name[:200],
        )

    def _checked(
        self, definition: Definition, key_id: str | None
    ) -> tuple[_Findings, Workflow | None]:
        findings = _Findings(operator=key_id is None)
        workflow: Workflow | None = None
        if definition.kind == "agent":
            self._visit(parse_agent(definition.source, definition.name), "", findings)
        else:
            workflow = parse_workflow(definition.source)
            try:
                check_retention("session.retain", workflow.retain_s, self._policy)
            except SandkastenError as exc:
                findings.add("", exc)
            self._visit_steps(workflow, findings)
        lacking: dict[str, SandkastenError] = {}
        for agent in findings.agents.values():
            try:
                self._loop.check_model(agent)
            except SandkastenError as exc:
                lacking[exc.message] = exc
        findings.warnings += [f"{error.message} ({error.hint})" for error in lacking.values()]
        return findings, workflow

    async def _check_sessions(
        self, findings: _Findings, workflow: Workflow, key_id: str | None
    ) -> None:
        """Add a Conflict for each pair of agents that cannot share a session.

        Agents with another error are left out.
        """
        sharing: dict[str, list[tuple[RunContext, SessionShape]]] = {}
        for agent in findings.agents.values():
            session = _shared_session(agent)
            if not session or agent.sandbox is None:
                continue
            context = RunContext(
                "run",
                agent.name,
                installed=agent.installed,
                workflow_run_id="workflow",
                key_id=key_id,
                sandbox=agent.sandbox,
            )
            with suppress(SandkastenError):
                shape = await self._toolbox.shape(context)
                sharing.setdefault(session, []).append((context, shape))
        if all(len(agents) < 2 for agents in sharing.values()):
            return
        # In a thread: thousands of pairs, with a search through the steps for each.
        for where, error in await asyncio.to_thread(
            _conflicts, workflow, findings.steps_of(), sharing
        ):
            findings.add(where, error)

    async def _check_images(self, findings: _Findings, *, workflow: bool) -> None:
        """Check the image of each agent.

        An agent that can join the session of another agent of its workflow needs no image.
        """
        refused: list[tuple[Agent, SandkastenError]] = []
        opened: set[str] = set()
        for agent in findings.agents.values():
            if agent.sandbox is None:
                continue
            named = f"the image of agent {agent.name}"
            try:
                if not await self._toolbox.find_image(agent.sandbox):
                    findings.warnings.append(f"{named} is not here; a run fetches it first")
            except (RequestError, NotFound) as exc:
                refused.append((agent, exc))
                continue
            except SandkastenError as exc:
                findings.warnings.append(f"{named} could not be checked: {exc.message}")
            opened.add(_shared_session(agent))
        for agent, error in refused:
            any_image = agent.sandbox is not None and agent.sandbox.options.image is None
            if workflow and any_image and _shared_session(agent) in opened - {""}:
                findings.warnings.append(
                    f"agent {agent.name} can only join a session, not open one: {error.message}"
                )
                continue
            findings.add(f"agent {agent.name}" if len(findings.agents) > 1 else "", error)


def _raise_problem(findings: _Findings) -> None:
    """Raise the first problem, if there is one."""
    for problem in findings.problems:
        raise problem.error


def _conflicts(
    workflow: Workflow,
    steps: Mapping[str, Sequence[str]],
    sharing: Mapping[str, Sequence[tuple[RunContext, SessionShape]]],
) -> list[tuple[str, SandkastenError]]:
    """Return an error for each pair of agents that cannot share a session, with its steps."""
    order = StepOrder(workflow)
    pairs = (
        (session, *pair)
        for session, agents in sharing.items()
        for pair in itertools.permutations(agents, 2)
    )
    reported: set[frozenset[str]] = set()
    conflicts: list[tuple[str, SandkastenError]] = []
    for session, (opener, has), (joiner, wanted) in itertools.islice(pairs, _MOST_PAIRS):
        opens, joins = opener.agent_name, joiner.agent_name
        differing = differences(wanted, has, join_terms(joiner))
        if (
            not differing
            or frozenset((opens, joins)) in reported
            or not order.may_precede(steps.get(opens, ()), steps.get(joins, ()))
        ):
            continue
        reported.add(frozenset((opens, joins)))
        error = join_refused(
            f"agent {shown(joins)} ({_named(steps[joins])})",
            f"agent {shown(opens)} ({_named(steps[opens])})",
            differing,
        )
        error.details.update(session_name=session, agent=joins, opened_by=opens)
        conflicts.append((_named(steps[joins]), error))
    return conflicts


def _shared_session(agent: Agent) -> str:
    """Return the name of the workflow's session that the agent uses; empty: its own."""
    sandbox = agent.sandbox
    if sandbox is None or sandbox.mode != "code" or sandbox.session in ("isolated", "agent"):
        return ""
    return "default" if sandbox.session == "workflow" else sandbox.session


def _steps_of(workflow: Workflow, agent: str) -> str:
    return _named([step.id for step in every_step(workflow.body) if step.agent == agent])


def _named(steps: Sequence[str]) -> str:
    return ("step " if len(steps) == 1 else "steps ") + ", ".join(steps[:_MOST_STEPS])
