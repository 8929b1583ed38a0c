"""Environment of a workflow run: agents to call, a clock, and limits."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping


@dataclass(frozen=True, slots=True)
class AgentCall:
    agent: str
    task: str
    variables: Mapping[str, Any]
    step_id: str
    attempt: int
    """Starts at 1. A run resumed after a crash repeats the same number."""
    key: str = ""
    """Step and the blocks around it: `each[3].review`."""


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    """Callbacks of a run. An exception of `save` or `note` ends the run and is not a step
    failure.
    """

    agent_step: Callable[[AgentCall], Awaitable[Mapping[str, Any]]]
    save: Callable[[Mapping[str, Any]], Awaitable[None]]
    note: Callable[[str, Mapping[str, Any]], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class WorkflowLimits:
    max_visits: int = 100
    """Visits of one step in one body, and rounds of one `while`."""
    max_steps: int = 1000
    """Steps of the whole run; inner steps count each time."""
    max_items: int = 1000
    max_agents: int = 8
    """Agents that work at the same time, over all branches."""
    output_bytes: int = 1024 * 1024
    state_bytes: int = 8 * 1024 * 1024
    timeout_s: float = 24 * 3600.0
    """Timeout of a workflow that sets none."""


class Clock(Protocol):
    def now(self) -> float:
        """Return the calendar time in seconds, since a run may resume after a restart."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class RealClock:
    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
