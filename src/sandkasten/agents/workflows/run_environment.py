"""What a run of a workflow is given: agents to call, a clock, and limits."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping


@dataclass(frozen=True, slots=True)
class AgentCall:
    agent: str
    task: str
    variables: Mapping[str, Any]
    step_id: str
    attempt: int
    """From 1. A run that went on after a crash says the same number again."""
    key: str = ""
    """The step and what it lies in: `each[3].review`."""


@dataclass(frozen=True, slots=True)
class Around:
    """Whom a run calls. An exception of `save` or `note` ends it, and is no failure of a step."""

    agent_step: Callable[[AgentCall], Awaitable[Mapping[str, Any]]]
    save: Callable[[Mapping[str, Any]], Awaitable[None]]
    note: Callable[[str, Mapping[str, Any]], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Limits:
    max_visits: int = 100
    """Of one step in one body, and rounds of one `while`."""
    max_steps: int = 1000
    """Of the whole run, those inside others counted each time."""
    max_items: int = 1000
    max_agents: int = 8
    """That work at the same time, whatever the branches."""
    output_bytes: int = 1024 * 1024
    state_bytes: int = 8 * 1024 * 1024
    timeout_s: float = 24 * 3600.0
    """Of a workflow that says none."""


class Clock(Protocol):
    def now(self) -> float:
        """Seconds of the calendar, since a run may go on after a restart."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class RealClock:
    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
