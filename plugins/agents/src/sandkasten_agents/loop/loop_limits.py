"""Limits of a run: steps, tokens, time, called agents. Pure.

An agent's file may request its own values up to the operator's maximum; more raises PolicyDenied
before the run starts. Usage of an agent counts for every agent above it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import PolicyDenied, RunLimitReached
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.runs.run_values import RunUsage

if TYPE_CHECKING:
    from sandkasten_agents.chat.chat_wire import Reply
    from sandkasten_agents.definitions.prompt_file import Agent


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Limits for all runs on this machine."""

    max_steps: int = 30
    """Model answers in one run, if the agent's file sets no value."""
    most_steps: int = 300
    """Maximum that a file may request; likewise for the other `most_` fields."""
    max_tokens: int | None = None
    """Total of prompts and answers; None: no limit."""
    most_tokens: int | None = None
    timeout_s: float = 1800.0
    most_timeout_s: float = 24 * 3600.0
    max_depth: int = 3
    """Depth of agent calls: with 3, the third agent below the first cannot call another."""
    max_called: int = 100
    """Agents that one run may call, directly and indirectly: each level could multiply them."""
    calls_at_once: int = 8
    answer_chars: int = 48_000
    """Length of one tool answer as the model sees it. About 12,000 tokens."""
    conversation_chars: int = 8 << 20
    """Length of all messages: about two million tokens, more than models read."""
    output_retries: int = 2
    """Number of times that an answer is requested again if it does not match its schema."""

    def for_agent(self, agent: Agent) -> AgentLimits:
        """Return the limits of one agent. Raise PolicyDenied when its file requests more than
        allowed.
        """
        for name, requested, most in (
            ("max_steps", agent.max_steps, self.most_steps),
            ("max_tokens", agent.max_tokens, self.most_tokens),
            ("timeout_seconds", agent.timeout_s, self.most_timeout_s),
        ):
            if requested is not None and most is not None and requested > most:
                raise PolicyDenied(
                    f"agent {agent.name!r} requests {name} {requested:g}, "
                    f"but agents.{name} allows {most:g}",
                    hint=f"lower {name} in the agent's file, or have the operator raise "
                    f"agents.{name}",
                    rule=name,
                )
        tokens = agent.max_tokens if agent.max_tokens is not None else self.max_tokens
        return AgentLimits(
            max_steps=agent.max_steps or self.max_steps,
            max_tokens=self.most_tokens if tokens is None else tokens,
            timeout_s=agent.timeout_s or self.timeout_s,
        )


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Limits of one run."""

    max_steps: int
    max_tokens: int | None
    timeout_s: float


class UsageMeter:
    """Usage of a run so far, including the agents it called. The caller may read it at any time."""

    def __init__(self, above: UsageMeter | None = None) -> None:
        self._above = above
        self._usage = RunUsage()
        self._agents = 0
        self.max_tokens: int | None = None

    @property
    def usage(self) -> RunUsage:
        return self._usage

    def count_answer(self, reply: Reply) -> None:
        self._add(RunUsage(1, 0, reply.prompt_tokens, reply.completion_tokens))

    def count_calls(self, calls: int) -> None:
        self._add(RunUsage(0, calls))

    def count_agent(self, most: int) -> None:
        """Count a called agent. Raise RunLimitReached when there are too many in total."""
        if self._above is not None:
            self._above.count_agent(most)
        elif self._agents >= most:
            raise RunLimitReached(
                f"the run has already called {most} agents, which is the maximum",
                hint="answer with the results so far, or finish without another agent",
                limit="agents",
                most=most,
            )
        self._agents += 1

    def check(self) -> None:
        """Raise RunLimitReached when this run, or one above it, has no tokens left."""
        used = self._usage.prompt_tokens + self._usage.completion_tokens
        if self.max_tokens is not None and used >= self.max_tokens:
            raise RunLimitReached(
                f"the run used {used} of its {self.max_tokens} tokens",
                hint="split the task, or raise max_tokens",
                limit="tokens",
                used=used,
                most=self.max_tokens,
            )
        if self._above is not None:
            self._above.check()

    def _add(self, more: RunUsage) -> None:
        had = self._usage
        self._usage = RunUsage(
            had.steps + more.steps,
            had.tool_calls + more.tool_calls,
            had.prompt_tokens + more.prompt_tokens,
            had.completion_tokens + more.completion_tokens,
        )
        if self._above is not None:
            self._above._add(more)
