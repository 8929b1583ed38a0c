"""Workflow runs in tests: agents are functions, and saves and events are recorded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandkasten_agents.workflows.workflow_file import parse_workflow
from sandkasten_agents.workflows.workflow_runner import AgentCall, WorkflowLimits, WorkflowRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten_agents.workflows.expressions import Expressions


class PowerCut(Exception):
    """Simulates the death of the process during a run."""


@dataclass
class Clock:
    """Sleeping advances this clock without waiting."""

    at: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds
        await asyncio.sleep(0)


@dataclass
class Flow:
    """A workflow with its agents; call `go` as often as needed."""

    text: str
    expressions: Expressions
    agent: Callable[[AgentCall], Any] = lambda call: {"response": call.agent}
    limits: WorkflowLimits = field(default_factory=WorkflowLimits)
    clock: Clock = field(default_factory=Clock)
    cut_at_save: int | None = None
    """Number of the save that never returns and is lost."""
    saved: dict[str, Any] = field(default_factory=dict)
    saves: int = 0
    calls: list[AgentCall] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def go(self, input: Any = None) -> Any:
        runner = WorkflowRunner(self.expressions, self.limits, self.clock)
        return await runner.run(
            parse_workflow(self.text),
            input,
            self.saved,
            agent_step=self._agent,
            save=self._save,
            note=self._note,
        )

    async def _agent(self, call: AgentCall) -> Any:
        self.calls.append(call)
        answer = self.agent(call)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def _save(self, state: Mapping[str, Any]) -> None:
        self.saves += 1
        if self.saves == self.cut_at_save:
            raise PowerCut
        self.saved = dict(state)

    async def _note(self, type: str, data: Mapping[str, Any]) -> None:
        self.events.append((type, dict(data)))

    @property
    def order(self) -> list[str]:
        return [call.step_id for call in self.calls]

    def noted(self, type: str) -> list[dict[str, Any]]:
        return [data for kind, data in self.events if kind == type]
