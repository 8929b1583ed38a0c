"""Runner of workflows: a crash costs at most the step in progress.

The state is saved before an agent starts and after every step. A run that resumes from a saved
state repeats the step that was not saved as done, and no other: each step runs at least once.

A failed step ends the run with RunFailed, which names the step and keeps the cause. Exceeding a
limit (visits, steps, bytes, time) ends it with RunLimitReached, which no `try` can catch.
Cancelling the run cancels the steps in progress and waits for them.
"""

from __future__ import annotations

import json
from dataclasses import field
from typing import TYPE_CHECKING, Any

from sandkasten.errors import InvalidRequest, InvalidWorkflow
from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports import UNTRACED
from sandkasten_agents.definitions import json_schemas
from sandkasten_agents.workflows.run_environment import (
    AgentCall,
    Clock,
    RealClock,
    RunCallbacks,
    WorkflowLimits,
)
from sandkasten_agents.workflows.workflow_execution import MOST_LEVELS, Stopped, WorkflowExecution
from sandkasten_agents.workflows.workflow_state import VERSION, new_state

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sandkasten.ports import Tracing
    from sandkasten_agents.workflows.expressions import Expressions
    from sandkasten_agents.workflows.workflow_plan import Workflow

__all__ = ["AgentCall", "Clock", "WorkflowLimits", "WorkflowRunner"]


@dataclass(frozen=True, slots=True)
class WorkflowRunner:
    """Runner for many runs. The caller owns the evaluator processes."""

    expressions: Expressions
    limits: WorkflowLimits = field(default_factory=WorkflowLimits)
    clock: Clock = field(default_factory=RealClock)
    tracing: Tracing = UNTRACED

    async def run(
        self,
        workflow: Workflow,
        input: Any,
        state: Mapping[str, Any] | None = None,
        *,
        agent_step: Callable[[AgentCall], Awaitable[Mapping[str, Any]]],
        save: Callable[[Mapping[str, Any]], Awaitable[None]],
        note: Callable[[str, Mapping[str, Any]], Awaitable[object]],
    ) -> Any:
        """Return the result of the workflow. `state` is the last value passed to `save`, or None.

        An exception of `save` or `note` is not a failure of the workflow and is passed on
        unchanged.
        """
        if json_schemas.is_deeper_than(input, MOST_LEVELS):
            raise InvalidRequest(f"the input is nested more than {MOST_LEVELS} levels deep")
        if state and state.get("version") != VERSION:
            raise InvalidWorkflow("the saved state of the run has an unsupported version")
        current = json.loads(json.dumps(state)) if state else new_state(workflow, self.clock.now())
        current.pop("failed", None)
        execution = WorkflowExecution(
            workflow,
            input,
            current,
            RunCallbacks(agent_step, save, note),
            self.expressions,
            self.limits,
            self.clock,
            self.tracing,
        )
        try:
            return await execution.run()
        except Stopped as stopped:
            raise stopped.error from stopped.__cause__
