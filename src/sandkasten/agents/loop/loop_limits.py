"""How far a run may go: steps, tokens, time, agents below agents. Pure.

An agent's file may ask for its own numbers up to the operator's ceilings; more is PolicyDenied
before the run begins. What an agent spends counts for every agent above it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandkasten.errors import PolicyDenied, RunLimitReached
from sandkasten.model.runs.run_values import RunUsage

if TYPE_CHECKING:
    from sandkasten.agents.chat.chat_wire import Reply
    from sandkasten.agents.definitions.prompt_file import Agent


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Of every run on this machine."""

    max_steps: int = 30
    """Answers of the model, where the agent's file says nothing."""
    most_steps: int = 300
    """The most that a file may ask for; so of the others."""
    max_tokens: int | None = None
    """Of all prompts and answers together; None: no limit."""
    most_tokens: int | None = None
    timeout_s: float = 1800.0
    most_timeout_s: float = 24 * 3600.0
    max_depth: int = 3
    """Agents that call one another: with 3, the third below the first can call no more."""
    max_called: int = 100
    """Agents that one run may call, with all that those call: each level could multiply them."""
    calls_at_once: int = 8
    answer_chars: int = 48_000
    """Of one tool's answer, as the model sees it. About 12,000 tokens."""
    conversation_chars: int = 8 << 20
    """Of all messages together: some two million tokens, more than models read."""
    output_retries: int = 2
    """How often an answer that does not fit its schema is asked for again."""

    def of(self, agent: Agent) -> Limits:
        """PolicyDenied when its file asks for more than the ceilings."""
        for name, asked, most in (
            ("max_steps", agent.max_steps, self.most_steps),
            ("max_tokens", agent.max_tokens, self.most_tokens),
            ("timeout_seconds", agent.timeout_s, self.most_timeout_s),
        ):
            if asked is not None and most is not None and asked > most:
                raise PolicyDenied(
                    f"agent {agent.name!r} requests {name} {asked:g}, but the maximum is {most:g}",
                    hint="lower the value in the agent's file, or raise the operator's maximum",
                    rule=name,
                )
        tokens = agent.max_tokens if agent.max_tokens is not None else self.max_tokens
        return Limits(
            max_steps=agent.max_steps or self.max_steps,
            max_tokens=self.most_tokens if tokens is None else tokens,
            timeout_s=agent.timeout_s or self.timeout_s,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one run."""

    max_steps: int
    max_tokens: int | None
    timeout_s: float


class Spent:
    """What a run has used so far, with all it called. Whoever began it may read it any time."""

    def __init__(self, above: Spent | None = None) -> None:
        self._above = above
        self._usage = RunUsage()
        self._agents = 0
        self.max_tokens: int | None = None

    @property
    def usage(self) -> RunUsage:
        return self._usage

    def answered(self, reply: Reply) -> None:
        self._add(RunUsage(1, 0, reply.prompt_tokens, reply.completion_tokens))

    def called(self, calls: int) -> None:
        self._add(RunUsage(0, calls))

    def handed_on(self, most: int) -> None:
        """Another agent is called. RunLimitReached when it would be one too many in all."""
        if self._above is not None:
            self._above.handed_on(most)
        elif self._agents >= most:
            raise RunLimitReached(
                f"the run has already called {most} agents, which is the maximum",
                hint="answer with the results so far, or finish without another agent",
                limit="agents",
            )
        self._agents += 1

    def check(self) -> None:
        """RunLimitReached when this run, or one above it, has no tokens left to go on with."""
        used = self._usage.prompt_tokens + self._usage.completion_tokens
        if self.max_tokens is not None and used >= self.max_tokens:
            raise RunLimitReached(
                f"the run used {used} of its {self.max_tokens} tokens",
                hint="split the task, or raise max_tokens",
                limit="tokens",
                used=used,
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
