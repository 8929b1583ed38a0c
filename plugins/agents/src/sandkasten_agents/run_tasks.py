"""Tasks of the runs that this process works on, and child runs.

An agent called by another agent, and an agent that is a step of a workflow, are child runs of their
caller. Cancelling a run cancels its child runs and waits for them; cancelling a child run fails the
call that started it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandkasten.errors import Busy, Cancelled, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.runs.run_values import RunRow, RunUsage, new_run_id
from sandkasten.ports import UNTRACED
from sandkasten_agents.loop.agent_loop import AgentLoop
from sandkasten_agents.loop.loop_limits import UsageMeter
from sandkasten_agents.run_lifecycle import Outcome
from sandkasten_agents.workflows.workflow_file import parse_workflow
from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from sandkasten_tools.calls.run_context import RunContext

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from sandkasten.ports import Clock, Tracing
    from sandkasten.ports.agent_ports import Runs
    from sandkasten_agents.chat.model_settings import Models
    from sandkasten_agents.definitions.library import Library
    from sandkasten_agents.definitions.prompt_file import Agent
    from sandkasten_agents.loop.agent_loop import AgentResult, ChildAgent
    from sandkasten_agents.loop.loop_limits import LoopLimits
    from sandkasten_agents.loop.transcript import Note
    from sandkasten_agents.run_lifecycle import ClaimedRun, RunLifecycle
    from sandkasten_agents.workflows.workflow_plan import Workflow
    from sandkasten_agents.workflows.workflow_runner import AgentCall, WorkflowRunner
    from sandkasten_tools.calls.toolbox import Toolbox


@dataclass(slots=True)
class _ChildOutcome:
    """Outcome of a child run: its result, or its error."""

    result: AgentResult | None = None
    error: SandkastenError | None = None


class RunTasks:
    def __init__(
        self,
        *,
        runs: Runs,
        lifecycle: RunLifecycle,
        toolbox: Toolbox,
        library: Library,
        models: Models,
        runner: WorkflowRunner,
        clock: Clock,
        limits: LoopLimits | None = None,
        tracing: Tracing = UNTRACED,
        idle_timeout_s: float | None = None,
    ) -> None:
        self.loop = AgentLoop(
            models,
            toolbox,
            library.agent,
            limits=limits,
            children=self._child,
            tracing=tracing,
        )
        self._runs = runs
        self._lifecycle = lifecycle
        self._library = library
        self._runner = runner
        self._clock = clock
        self._idle_timeout_s = idle_timeout_s
        self._tasks: dict[str, asyncio.Task[RunRow]] = {}
        self._tops: set[str] = set()
        self._closed = False

    @property
    def top_level_count(self) -> int:
        """Return the number of runs that are not child runs."""
        return len(self._tops)

    def has(self, run_id: str) -> bool:
        return run_id in self._tasks

    def ids(self) -> Collection[str]:
        return frozenset(self._tasks)

    async def idle(self) -> None:
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def cancel(self, run_id: str) -> bool:
        """Cancel the run and wait for its end; return whether it belonged to this process."""
        task = self._tasks.get(run_id)
        if task is None:
            return False
        task.cancel()
        await asyncio.wait({task})
        return True

    async def aclose(self) -> None:
        self._closed = True
        # Top-level runs first: they end their child runs.
        for run_id in list(self._tops):
            self._tasks[run_id].cancel()
        await self.idle()
        await self.loop.aclose()

    # ---- starting runs

    def start_agent(self, row: RunRow, agent: Agent) -> None:
        inputs: Mapping[str, Any] = row.input

        async def work(claimed: ClaimedRun) -> Outcome:
            started = {"agent": agent.name, "task": inputs["task"]}
            await claimed.note("run.started", started | _warning_data(agent.warnings))
            done = await self._agent(
                claimed, agent, inputs["task"], inputs["variables"], self._context(row, agent)
            )
            return Outcome(done.output, done.usage)

        self._begin(row, work, top=True)

    def start_workflow(self, row: RunRow, workflow: Workflow, warnings: Sequence[str]) -> None:
        async def work(claimed: ClaimedRun) -> Outcome:
            await claimed.note("run.started", {"workflow": workflow.id} | _warning_data(warnings))
            return await self._workflow(claimed, workflow)

        self._begin(row, work, top=True)

    def resume(self, row: RunRow) -> None:
        """Resume a run from its last saved state and the workflow file it was started with."""

        async def work(claimed: ClaimedRun) -> Outcome:
            await claimed.note("run.resumed", {"workflow": row.name})
            return await self._workflow(claimed, parse_workflow(row.source))

        self._begin(row, work, top=True)

    def _begin(
        self, row: RunRow, work: Callable[[ClaimedRun], Awaitable[Outcome]], *, top: bool
    ) -> asyncio.Task[RunRow]:
        if self._closed:
            # The row is open and unclaimed, so the next recovery settles it.
            raise Busy("new runs are rejected during shutdown", hint="try again")
        task = asyncio.create_task(self._lifecycle.execute(row, work))
        self._tasks[row.id] = task
        if top:
            self._tops.add(row.id)

        def ended(done: asyncio.Task[RunRow]) -> None:
            self._tasks.pop(row.id, None)
            self._tops.discard(row.id)
            if not done.cancelled():
                # Another process has or had the run; its row has the details.
                done.exception()

        task.add_done_callback(ended)
        return task

    # ---- one agent

    def _context(self, row: RunRow, agent: Agent) -> RunContext:
        return RunContext(
            agent_run_id=row.id,
            agent_name=agent.name,
            installed=agent.installed,
            workflow_run_id=row.workflow_run_id,
            tenant=row.tenant,
            key_id=row.key_id,
            quota=row.quota,
            files=row.files,
            retain_s=row.retain_s,
            sandbox=agent.sandbox or AgentSandbox(),
            idle_timeout_s=self._idle_timeout_s,
        )

    async def _agent(
        self,
        claimed: ClaimedRun,
        agent: Agent,
        task: str,
        variables: Mapping[str, Any],
        context: RunContext,
    ) -> AgentResult:
        spent = UsageMeter()
        try:
            return await self.loop.run(agent, task, variables, context, claimed.note, spent)
        finally:
            claimed.usage = spent.usage

    # ---- child runs

    def _child_row(
        self, agent: Agent, task: str, variables: Mapping[str, Any], above: RunRow | RunContext
    ) -> RunRow:
        """Return the row of a child run of `caller`."""
        return RunRow(
            id=new_run_id(),
            kind="agent",
            name=agent.name,
            created_at=self._clock.now(),
            tenant=above.tenant,
            input={"task": task, "variables": dict(variables)},
            key_id=above.key_id,
            quota=above.quota,
            files=above.files,
            source=agent.source,
        )

    async def _child(
        self,
        child: ChildAgent,
        note: Note,
        work: Callable[[RunContext, Note], Awaitable[AgentResult]],
    ) -> AgentResult:
        parent = child.parent
        row = self._child_row(child.agent, child.task, child.variables, parent)
        row = replace(row, parent_id=parent.agent_run_id, workflow_run_id=parent.workflow_run_id)

        async def do(claimed: ClaimedRun) -> AgentResult:
            try:
                return await work(child.context(row.id), claimed.note)
            finally:
                claimed.usage = child.spent.usage

        await self._runs.begin(row)
        await note("agent.called", {"agent": row.name, "run_id": row.id})
        return await self._run_child(row, do)

    async def _run_child(
        self, row: RunRow, do: Callable[[ClaimedRun], Awaitable[AgentResult]]
    ) -> AgentResult:
        """Run a child whose row is already saved, so that clients that learn its id can find it."""
        answer = _ChildOutcome()

        async def work(claimed: ClaimedRun) -> Outcome:
            started = {"agent": row.name, "parent_id": row.parent_id}
            await claimed.note("run.started", started)
            try:
                answer.result = result = await do(claimed)
            except SandkastenError as exc:
                answer.error = exc
                raise
            return Outcome(result.output, result.usage)

        await _wait(self._begin(row, work, top=False))
        if answer.result is not None:
            return answer.result
        raise answer.error or Cancelled(
            f"the run {row.id} of agent {row.name} was cancelled",
            hint=f"see its events: sandkasten agent inspect {row.id}",
            run_id=row.id,
        )

    # ---- workflows

    async def _workflow(self, claimed: ClaimedRun, workflow: Workflow) -> Outcome:
        row = claimed.row

        async def save(state: Mapping[str, Any]) -> None:
            claimed.usage = replace(claimed.usage, steps=int(state.get("steps", 0)))
            await claimed.save(state)

        async def step(call: AgentCall) -> Mapping[str, Any]:
            return await self._step(claimed, call)

        output = await self._runner.run(
            workflow, row.input, row.state or None, agent_step=step, save=save, note=claimed.note
        )
        return Outcome(output, claimed.usage)

    async def _step(self, claimed: ClaimedRun, call: AgentCall) -> Mapping[str, Any]:
        above = claimed.row
        agent = await asyncio.to_thread(self._library.agent, call.agent)
        row = self._child_row(agent, call.task, call.variables, above)
        row = replace(row, parent_id=above.id, workflow_run_id=above.id, retain_s=above.retain_s)
        spent = UsageMeter()

        async def do(inner: ClaimedRun) -> AgentResult:
            context = self._context(row, agent)
            try:
                return await self.loop.run(
                    agent, call.task, call.variables, context, inner.note, spent
                )
            finally:
                inner.usage = spent.usage
                claimed.usage = _add_usage(claimed.usage, spent.usage)

        about = {"step": call.step_id, "key": call.key, "agent": agent.name, "run_id": row.id}
        await self._runs.begin(row)
        await claimed.note("agent.called", {**about, "attempt": call.attempt})
        result = await self._run_child(row, do)
        return step_output(row, result)


def _warning_data(warnings: Sequence[str]) -> dict[str, Any]:
    """Return the warnings of a file for the start event of its run."""
    return {"warnings": list(warnings)} if warnings else {}


def step_output(row: RunRow, result: AgentResult) -> dict[str, Any]:
    """Return the output that later steps see: the fields of its JSON, and those common to all
    agents.
    """
    fields = dict(result.output) if isinstance(result.output, dict) else {}
    return {
        **fields,
        "response": result.text,
        "result": result.output,
        "agent_id": row.name,
        "agent_name": row.name,
        "run_id": row.id,
        "step_count": result.usage.steps,
    }


def _add_usage(usage: RunUsage, more: RunUsage) -> RunUsage:
    """Add the usage of a child run. Steps of a workflow count for the workflow only."""
    return replace(
        usage,
        tool_calls=usage.tool_calls + more.tool_calls,
        prompt_tokens=usage.prompt_tokens + more.prompt_tokens,
        completion_tokens=usage.completion_tokens + more.completion_tokens,
    )


async def _wait(task: asyncio.Task[RunRow]) -> None:
    """Wait for the end of a run. When cancelled, cancel the run, wait for its end, and re-raise."""
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                continue
        raise
