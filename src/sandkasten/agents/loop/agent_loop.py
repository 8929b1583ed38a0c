"""Agent loop: call the model, run its tools, and repeat until it answers.

Mistakes of the model (an unknown tool, invalid JSON arguments, an answer that does not match its
schema) are reported to the model, which may correct them. Errors that end a run: RunLimitReached at
a limit, RunFailed if it cannot succeed, and the errors of `chat` if the model cannot be called. The
transcript up to that point is already recorded.

Cancelling the loop cancels its tools and its request, and waits for them. Destroying the sandboxes
of a run is the caller's task.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from sandkasten.agents.chat.chat_client import ChatModel, ChatRequest, ToolCall
from sandkasten.agents.definitions.json_schemas import check, deeper_than
from sandkasten.agents.definitions.prompt_render import render
from sandkasten.agents.definitions.sandbox_request import AgentSandbox
from sandkasten.agents.loop.loop_limits import LoopLimits, Spent
from sandkasten.agents.loop.tool_messages import (
    MOST_LEVELS,
    arguments_of,
    complaint,
    echoed,
    fitted,
    gapped,
    json_of,
    unknown_tool,
)
from sandkasten.agents.loop.tool_offer import Offer, offer
from sandkasten.agents.loop.transcript import Transcript
from sandkasten.agents.run_lifecycle import CLEAN_S, settled
from sandkasten.agents.tools.tool_answers import failure
from sandkasten.errors import InvalidRequest, RunFailed, RunLimitReached, SandkastenError
from sandkasten.model.runs.run_values import RunUsage, new_run_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from sandkasten.agents.chat.chat_client import Models, Reply
    from sandkasten.agents.definitions.prompt_file import Agent
    from sandkasten.agents.loop.transcript import Note
    from sandkasten.agents.run_context import RunContext
    from sandkasten.agents.tools.toolbox import Toolbox

    Work = Callable[[RunContext, Note], Awaitable["AgentResult"]]

__all__ = ["AgentLoop", "AgentResult", "Child", "Children", "LoopLimits", "Spent"]


@dataclass(frozen=True, slots=True)
class AgentResult:
    output: Any
    """JSON that matches the agent's schema if it has one; otherwise the text of the answer."""
    text: str
    usage: RunUsage = field(default_factory=RunUsage)


@dataclass(frozen=True, slots=True)
class Child:
    """An agent called by another agent."""

    agent: Agent
    task: str
    variables: Mapping[str, Any]
    parent: RunContext
    spent: Spent
    """Read it after the work has ended, for whatever reason."""

    def context(self, run_id: str) -> RunContext:
        """Return the context of the child: same workflow, sandbox as its own file requests."""
        return replace(
            self.parent,
            agent_run_id=run_id,
            agent_name=self.agent.name,
            sandbox=self.agent.sandbox or AgentSandbox(),
            depth=self.parent.depth + 1,
        )


class Children(Protocol):
    """Callback that creates a child run for an agent called by another."""

    async def __call__(self, child: Child, note: Note, work: Work) -> AgentResult:
        """Call `work` once, with the context and the note of the new run; `note` is the caller's.

        Exceptions of `work` are passed on.
        """
        ...


@dataclass(slots=True)
class _Talk:
    """One conversation. Only its messages grow; the rest is constant."""

    agent: Agent
    offer: Offer
    context: RunContext
    transcript: Transcript
    note: Note
    spent: Spent
    messages: list[Mapping[str, Any]]
    most_chars: int
    chars: int = 0

    def add(self, *messages: Mapping[str, Any]) -> None:
        """Add messages. Raise RunLimitReached when the conversation is larger than any model
        reads.
        """
        self.messages.extend(messages)
        self.chars += sum(len(json.dumps(one, ensure_ascii=False)) for one in messages)
        if self.chars > self.most_chars:
            raise RunLimitReached(
                f"the conversation has more than {self.most_chars} characters",
                hint="return less from tools, or split the task",
                limit="conversation",
            )


class AgentLoop:
    """Loop for many concurrent runs in one event loop. Keeps sockets open until `aclose`."""

    def __init__(
        self,
        models: Models,
        toolbox: Toolbox,
        agents: Callable[[str], Agent],
        *,
        limits: LoopLimits | None = None,
        children: Children | None = None,
    ) -> None:
        """`agents` finds called agents by name: AgentNotFound, InvalidAgent.

        Without `children`, a called agent is recorded in its caller's transcript, and its sandboxes
        are destroyed when it has answered.
        """
        self._models = models
        self._toolbox = toolbox
        self._agents = agents
        self._limits = limits or LoopLimits()
        self._children = children or self._unrecorded
        self._chat = ChatModel()

    async def __aenter__(self) -> AgentLoop:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._chat.aclose()

    def check(self, agent: Agent, depth: int = 0) -> None:
        """Raise the errors that `run` would raise before its first request to the model."""
        self._offer(agent, depth)

    def _offer(self, agent: Agent, depth: int) -> Offer:
        return offer(agent, self._models, self._toolbox, self._agents, self._limits, depth)

    async def run(
        self,
        agent: Agent,
        task: str,
        variables: Mapping[str, Any],
        context: RunContext,
        note: Note,
        spent: Spent | None = None,
    ) -> AgentResult:
        """Run the agent. Pass `spent` to read the usage of a run that fails."""
        spent = spent or Spent()
        # Finding agents reads files.
        offered = await asyncio.to_thread(self._offer, agent, context.depth)
        spent.max_tokens = offered.limits.max_tokens
        transcript = Transcript(note, agent.name)
        messages: list[Mapping[str, Any]] = list(
            # A malicious file can make this take seconds.
            await asyncio.to_thread(render, agent, task, variables)
        )
        for one in messages:
            await transcript.said(str(one.get("role")), one.get("content"))
        most = self._limits.conversation_chars
        talk = _Talk(agent, offered, context, transcript, note, spent, messages, most)
        timer = asyncio.timeout(offered.limits.timeout_s)
        try:
            async with timer:
                if agent.sandbox is not None:
                    await self._toolbox.prepare(context)
                return await self._converse(talk)
        except TimeoutError as exc:
            if not timer.expired():
                raise
            raise RunLimitReached(
                f"the agent {agent.name!r} exceeded its timeout of {offered.limits.timeout_s:g} s",
                hint="reduce the task, or raise timeout_seconds in the agent's file",
                limit="timeout",
            ) from exc

    # ---- the conversation

    async def _converse(self, talk: _Talk) -> AgentResult:
        tries = 0
        for step in range(1, talk.offer.limits.max_steps + 1):
            if step > 1:
                talk.spent.check()
            reply = await self._ask(talk, step)
            if reply.finish_reason == "content_filter":
                raise RunFailed(
                    "the model endpoint withheld the answer (content_filter)",
                    hint="rephrase the task, or use another model",
                    reason="content_filter",
                )
            if reply.tool_calls:
                if step < talk.offer.limits.max_steps:
                    await self._use(talk, reply, step)
                continue
            text = _final(reply)
            if talk.agent.output_format != "json":
                text = text or reply.refusal
                return AgentResult(text, text, talk.spent.usage)
            if reply.refusal and not text:
                raise RunFailed(
                    f"the model refused to answer: {gapped(reply.refusal, 500)}",
                    hint="rephrase the task, or use another model",
                    reason="refusal",
                )
            output, problems = await asyncio.to_thread(_output, text, talk.agent.output_schema)
            if not problems:
                return AgentResult(output, text, talk.spent.usage)
            tries += 1
            if tries > self._limits.output_retries:
                raise _misfit(talk.agent, tries, problems)
            await self._correct(talk, reply.text, problems)
        steps = talk.offer.limits.max_steps
        raise RunLimitReached(
            f"the agent {talk.agent.name!r} did not finish within {steps} steps",
            hint="split the task, or raise max_steps in the agent's file; the transcript is kept",
            limit="steps",
            steps=steps,
        )

    async def _ask(self, talk: _Talk, step: int) -> Reply:
        offered = talk.offer
        request = ChatRequest(
            tuple(talk.messages), offered.functions, offered.response_format, offered.config
        )
        began = time.monotonic()
        reply = await self._chat.ask(offered.settings, request, talk.transcript.retried)
        talk.spent.answered(reply)
        await talk.transcript.answered(offered.settings.model, reply, step, _ms(began))
        return reply

    async def _correct(self, talk: _Talk, text: str, problems: list[str]) -> None:
        told = complaint(problems)
        talk.add({"role": "assistant", "content": text}, {"role": "user", "content": told})
        await talk.transcript.said("user", told)

    # ---- tools

    async def _use(self, talk: _Talk, reply: Reply, step: int) -> None:
        """Run all calls of an answer concurrently; append their answers in the order of the
        calls.
        """
        calls = _numbered(reply.tool_calls, step)
        cut = reply.finish_reason == "length"
        talk.spent.called(len(calls))
        room = asyncio.Semaphore(self._limits.calls_at_once)

        async def one(call: ToolCall) -> str:
            async with room:
                answer = await self._answer(talk, call, step, cut=cut)
            return fitted(answer, self._limits.answer_chars)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(call)) for call in calls]
        except BaseExceptionGroup as exc:
            # Not the model's mistake but ours: the transcript could not be saved, for example.
            raise exc.exceptions[0] from None
        talk.add(
            {
                "role": "assistant",
                "content": reply.text or None,
                "tool_calls": [echoed(call) for call in calls],
            },
            *(
                {"role": "tool", "tool_call_id": call.id, "content": task.result()}
                for call, task in zip(calls, tasks, strict=True)
            ),
        )

    async def _answer(
        self, talk: _Talk, call: ToolCall, step: int, *, cut: bool
    ) -> Mapping[str, Any]:
        await talk.transcript.called(call, step)
        began = time.monotonic()
        answer = await self._do(talk, call, cut=cut)
        await talk.transcript.returned(call, answer, step, _ms(began))
        return answer

    async def _do(self, talk: _Talk, call: ToolCall, *, cut: bool) -> Mapping[str, Any]:
        if call.name not in talk.offer.tools and call.name not in talk.offer.agents:
            return unknown_tool(call.name, talk.offer.names)
        try:
            arguments = arguments_of(call, cut=cut)
            if call.name in talk.offer.tools:
                return await self._toolbox.call(call.name, arguments, talk.context)
            return await self._hand_on(talk, talk.offer.agents[call.name], arguments)
        except SandkastenError as exc:
            return failure(exc)

    # ---- child agents

    async def _hand_on(
        self, talk: _Talk, agent: Agent, arguments: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        task, variables = arguments.get("task", ""), arguments.get("variables", {})
        if not isinstance(task, str) or not isinstance(variables, dict):
            raise InvalidRequest(
                "`task` must be a string and `variables` an object",
                hint='call it again, such as {"task": "…"}',
            )
        if deeper_than(variables, MOST_LEVELS):
            raise InvalidRequest(
                f"`variables` are nested more than {MOST_LEVELS} levels deep", hint="flatten them"
            )
        # A budget below the caller's: usage of the child counts for the caller too.
        talk.spent.handed_on(self._limits.max_called)
        spent = Spent(talk.spent)
        spent.check()

        async def work(context: RunContext, note: Note) -> AgentResult:
            return await self.run(agent, task, variables, context, note, spent)

        child = Child(agent, task, variables, talk.context, spent)
        result = await self._children(child, talk.note, work)
        return {"ok": True, "agent": agent.name, "output": result.output}

    async def _unrecorded(self, child: Child, note: Note, work: Work) -> AgentResult:
        context = child.context(new_run_id())
        try:
            return await work(context, note)
        finally:
            await settled(self._finish(context))

    async def _finish(self, context: RunContext) -> None:
        # Leftovers are destroyed when the run above ends, or by the reaper.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_S):
                await self._toolbox.finish("agent", context.agent_run_id, context.tenant)


def _numbered(calls: Sequence[ToolCall], step: int) -> list[ToolCall]:
    """Give each call a unique id, because an answer is matched to its call by id only."""
    seen: set[str] = set()
    found = []
    for place, call in enumerate(calls):
        own = call.id if call.id and call.id not in seen else f"call_{step}_{place}"
        while own in seen:
            own += "_"
        seen.add(own)
        found.append(ToolCall(own, call.name, call.arguments))
    return found


def _final(reply: Reply) -> str:
    if reply.finish_reason == "length":
        raise RunLimitReached(
            "the model's answer was cut off at its length limit",
            hint="raise maxOutputTokens in the agent's config, or ask for a shorter answer",
            limit="answer_length",
        )
    return reply.text


def _output(text: str, schema: Mapping[str, Any] | None) -> tuple[Any, list[str]]:
    try:
        found = json_of(text)
    except ValueError as exc:
        return None, [str(exc)]
    return found, [] if schema is None else check(found, schema)


def _misfit(agent: Agent, tries: int, problems: list[str]) -> RunFailed:
    return RunFailed(
        f"the answer of agent {agent.name!r} did not match its schema in {tries} tries: "
        + "; ".join(one[:200] for one in problems[:5]),
        hint="simplify the schema, or describe it in the prompt",
        reason="output_schema",
        violations=[one[:500] for one in problems[:20]],
    )


def _ms(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
