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
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol

from sandkasten.errors import (
    Conflict,
    InvalidRequest,
    RunFailed,
    RunLimitReached,
    SandkastenError,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.runs.run_values import RunUsage, new_run_id
from sandkasten.model.sandbox.session_joins import JOIN_REFUSED
from sandkasten.ports import UNTRACED
from sandkasten_agents.chat.chat_client import ChatModel, ChatRequest, ToolCall
from sandkasten_agents.definitions.json_schemas import check, is_deeper_than
from sandkasten_agents.definitions.prompt_render import render
from sandkasten_agents.loop.agent_functions import AgentFunctions, build_functions
from sandkasten_agents.loop.loop_limits import LoopLimits, UsageMeter
from sandkasten_agents.loop.shortened_answers import shortened, truncated_json
from sandkasten_agents.loop.tool_messages import (
    MOST_LEVELS,
    parse_arguments,
    parse_json_answer,
    sanitized_call,
    schema_complaint,
    unknown_tool,
)
from sandkasten_agents.loop.transcript import Transcript
from sandkasten_agents.run_lifecycle import CLEAN_S, finish_shielded
from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from sandkasten_tools.calls.tool_answers import failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from sandkasten.ports import Tracing
    from sandkasten_agents.chat.chat_client import Models, ModelSettings, Reply
    from sandkasten_agents.definitions.prompt_file import Agent
    from sandkasten_agents.loop.transcript import Note
    from sandkasten_tools.calls.run_context import RunContext
    from sandkasten_tools.calls.toolbox import Toolbox

    Work = Callable[[RunContext, Note], Awaitable["AgentResult"]]

__all__ = ["AgentLoop", "AgentResult", "ChildAgent", "ChildRunner", "LoopLimits", "UsageMeter"]


@dataclass(frozen=True, slots=True)
class AgentResult:
    output: Any
    """JSON that matches the agent's schema if it has one; otherwise the text of the answer."""
    text: str
    usage: RunUsage = field(default_factory=RunUsage)


@dataclass(frozen=True, slots=True)
class ChildAgent:
    """An agent called by another agent."""

    agent: Agent
    task: str
    variables: Mapping[str, Any]
    parent: RunContext
    spent: UsageMeter
    """Read it after the work has ended, for whatever reason."""

    def context(self, run_id: str) -> RunContext:
        """Return the context of the child: same workflow, sandbox as its own file requests."""
        in_workflow = self.parent.workflow_run_id is not None
        return replace(
            self.parent,
            agent_run_id=run_id,
            agent_name=self.agent.name,
            installed=self.agent.installed,
            sandbox=self.agent.sandbox or AgentSandbox(),
            depth=self.parent.depth + 1,
            # Without a workflow, its sessions are its own, and a request can only forbid to keep
            # them.
            retain_s=self.parent.retain_s if in_workflow or self.parent.retain_s == 0 else None,
        )


class ChildRunner(Protocol):
    """Callback that creates a child run for an agent called by another."""

    async def __call__(self, child: ChildAgent, note: Note, work: Work) -> AgentResult:
        """Call `work` once, with the context and the note of the new run; `note` is the caller's.

        Exceptions of `work` are passed on.
        """
        ...


@dataclass(slots=True)
class _Conversation:
    """One conversation. Only its messages grow; the rest is constant."""

    agent: Agent
    settings: ModelSettings
    offer: AgentFunctions
    context: RunContext
    transcript: Transcript
    note: Note
    spent: UsageMeter
    messages: list[Mapping[str, Any]]
    most_chars: int
    chars: int = 0
    worked: bool = False
    """Whether a tool call succeeded."""
    refused: Conflict | None = None
    """The error of a call whose agent may not join its session."""

    def saw(self, answer: Mapping[str, Any]) -> None:
        """Note whether a tool call could do anything."""
        if "error_code" not in answer:
            self.worked = True
        elif answer["details"].get("reason") == JOIN_REFUSED:
            self.refused = Conflict(answer["message"], hint=answer["hint"], **answer["details"])

    def check_worked(self) -> None:
        """Raise the Conflict of a session that kept every tool call from doing anything."""
        if self.refused is not None and not self.worked:
            raise self.refused

    def add(self, *messages: Mapping[str, Any]) -> None:
        """Add messages. Raise RunLimitReached when the conversation is larger than any model
        reads.
        """
        self.messages.extend(messages)
        self.chars += sum(len(json.dumps(message, ensure_ascii=False)) for message in messages)
        if self.chars > self.most_chars:
            raise RunLimitReached(
                f"the conversation has more than {self.most_chars} characters",
                hint="return less from tools, or split the task",
                limit="conversation",
                most_chars=self.most_chars,
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
        children: ChildRunner | None = None,
        tracing: Tracing = UNTRACED,
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
        self._tracing = tracing

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
        """Raise the errors of the agent's file that `run` would raise before it asks the model."""
        self._offer(agent, depth)

    def check_model(self, agent: Agent) -> None:
        """Raise InvalidConfiguration when no endpoint serves the agent's model."""
        self._models.for_name(agent.model)

    def _offer(self, agent: Agent, depth: int) -> AgentFunctions:
        return build_functions(agent, self._toolbox, self._agents, self._limits, depth)

    async def run(
        self,
        agent: Agent,
        task: str,
        variables: Mapping[str, Any],
        context: RunContext,
        note: Note,
        spent: UsageMeter | None = None,
    ) -> AgentResult:
        """Run the agent. Pass `spent` to read the usage of a run that fails."""
        spent = spent or UsageMeter()
        settings = self._models.for_name(agent.model)
        # Finding agents reads files.
        offered = await asyncio.to_thread(self._offer, agent, context.depth)
        spent.max_tokens = offered.limits.max_tokens
        transcript = Transcript(note, agent.name)
        messages: list[Mapping[str, Any]] = list(
            # A malicious file can make this take seconds.
            await asyncio.to_thread(render, agent, task, variables)
        )
        for message in messages:
            await transcript.add_message(str(message.get("role")), message.get("content"))
        most = self._limits.conversation_chars
        conversation = _Conversation(
            agent, settings, offered, context, transcript, note, spent, messages, most
        )
        timer = asyncio.timeout(offered.limits.timeout_s)
        try:
            async with timer:
                if agent.sandbox is not None:
                    await self._toolbox.prepare(context)
                return await self._converse(conversation)
        except TimeoutError as exc:
            if not timer.expired():
                raise
            raise RunLimitReached(
                f"the agent {agent.name!r} exceeded its timeout of {offered.limits.timeout_s:g} s",
                hint="reduce the task, or raise timeout_seconds in the agent's file",
                limit="timeout",
                timeout_s=offered.limits.timeout_s,
            ) from exc

    # ---- the conversation

    async def _converse(self, conversation: _Conversation) -> AgentResult:
        tries = 0
        for step in range(1, conversation.offer.limits.max_steps + 1):
            if step > 1:
                conversation.spent.check()
            reply = await self._ask(conversation, step)
            if reply.finish_reason == "content_filter":
                raise RunFailed(
                    "the model endpoint withheld the answer (content_filter)",
                    hint="rephrase the task, or use another model",
                    reason="content_filter",
                )
            if reply.tool_calls:
                if step < conversation.offer.limits.max_steps:
                    await self._run_tools(conversation, reply, step)
                continue
            text = _final(reply)
            conversation.check_worked()
            if conversation.agent.output_format != "json":
                text = text or reply.refusal
                return AgentResult(text, text, conversation.spent.usage)
            if reply.refusal and not text:
                raise RunFailed(
                    f"the model refused to answer: {shortened(reply.refusal, 500)}",
                    hint="rephrase the task, or use another model",
                    reason="refusal",
                )
            output, problems = await asyncio.to_thread(
                _output, text, conversation.agent.output_schema
            )
            if not problems:
                return AgentResult(output, text, conversation.spent.usage)
            tries += 1
            if tries > self._limits.output_retries:
                raise _schema_error(conversation.agent, tries, problems)
            await self._correct(conversation, reply.text, problems)
        steps = conversation.offer.limits.max_steps
        raise RunLimitReached(
            f"the agent {conversation.agent.name!r} did not finish within {steps} steps",
            hint="split the task, or raise max_steps in the agent's file; the transcript is kept",
            limit="steps",
            steps=steps,
        )

    async def _ask(self, conversation: _Conversation, step: int) -> Reply:
        offered, settings = conversation.offer, conversation.settings
        request = ChatRequest(
            tuple(conversation.messages), offered.functions, offered.response_format, offered.config
        )
        began = time.monotonic()
        about = {"gen_ai.operation.name": "chat", "gen_ai.request.model": settings.model}
        with self._tracing.span(f"chat {settings.model}", about) as span:
            reply = await self._chat.ask(
                settings, request, conversation.transcript.add_retry, self._tracing.traceparent()
            )
            span.set(
                {
                    "gen_ai.usage.input_tokens": reply.prompt_tokens,
                    "gen_ai.usage.output_tokens": reply.completion_tokens,
                    "gen_ai.response.finish_reason": reply.finish_reason or None,
                }
            )
        conversation.spent.count_answer(reply)
        await conversation.transcript.add_answer(settings.model, reply, step, _ms(began))
        return reply

    async def _correct(self, conversation: _Conversation, text: str, problems: list[str]) -> None:
        complaint = schema_complaint(problems)
        conversation.add(
            {"role": "assistant", "content": text}, {"role": "user", "content": complaint}
        )
        await conversation.transcript.add_message("user", complaint)

    # ---- tools

    async def _run_tools(self, conversation: _Conversation, reply: Reply, step: int) -> None:
        """Run all calls of an answer concurrently; append their answers in the order of the
        calls.
        """
        calls = _with_unique_ids(reply.tool_calls, step)
        cut = reply.finish_reason == "length"
        conversation.spent.count_calls(len(calls))
        room = asyncio.Semaphore(self._limits.calls_at_once)

        async def call_tool(call: ToolCall) -> str:
            async with room:
                answer = await self._answer(conversation, call, step, cut=cut)
            return truncated_json(answer, self._limits.answer_chars)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(call_tool(call)) for call in calls]
        except BaseExceptionGroup as exc:
            # Not the model's mistake but ours: the transcript could not be saved, for example.
            raise exc.exceptions[0] from None
        conversation.add(
            {
                "role": "assistant",
                "content": reply.text or None,
                "tool_calls": [sanitized_call(call) for call in calls],
            },
            *(
                {"role": "tool", "tool_call_id": call.id, "content": task.result()}
                for call, task in zip(calls, tasks, strict=True)
            ),
        )

    async def _answer(
        self, conversation: _Conversation, call: ToolCall, step: int, *, cut: bool
    ) -> Mapping[str, Any]:
        await conversation.transcript.add_call(call, step)
        began = time.monotonic()
        answer = await self._run_tool(conversation, call, cut=cut)
        conversation.saw(answer)
        await conversation.transcript.add_result(call, answer, step, _ms(began))
        return answer

    async def _run_tool(
        self, conversation: _Conversation, call: ToolCall, *, cut: bool
    ) -> Mapping[str, Any]:
        if call.name not in conversation.offer.tools and call.name not in conversation.offer.agents:
            return unknown_tool(call.name, conversation.offer.names)
        try:
            arguments = parse_arguments(call, cut=cut)
            if call.name in conversation.offer.tools:
                return await self._toolbox.call(call.name, arguments, conversation.context)
            return await self._call_agent(
                conversation, conversation.offer.agents[call.name], arguments
            )
        except SandkastenError as exc:
            return failure(exc)

    # ---- child agents

    async def _call_agent(
        self, conversation: _Conversation, agent: Agent, arguments: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        task, variables = arguments.get("task", ""), arguments.get("variables", {})
        if not isinstance(task, str) or not isinstance(variables, dict):
            raise InvalidRequest(
                "`task` must be a string and `variables` an object",
                hint='call it again, such as {"task": "…"}',
            )
        if is_deeper_than(variables, MOST_LEVELS):
            raise InvalidRequest(
                f"`variables` are nested more than {MOST_LEVELS} levels deep", hint="flatten them"
            )
        # A budget below the caller's: usage of the child counts for the caller too.
        conversation.spent.count_agent(self._limits.max_called)
        spent = UsageMeter(conversation.spent)
        spent.check()

        async def work(context: RunContext, note: Note) -> AgentResult:
            return await self.run(agent, task, variables, context, note, spent)

        child = ChildAgent(agent, task, variables, conversation.context, spent)
        result = await self._children(child, conversation.note, work)
        return {"ok": True, "agent": agent.name, "output": result.output}

    async def _unrecorded(self, child: ChildAgent, note: Note, work: Work) -> AgentResult:
        context = child.context(new_run_id())
        try:
            return await work(context, note)
        finally:
            await finish_shielded(self._finish(context))

    async def _finish(self, context: RunContext) -> None:
        # Leftovers are destroyed when the run above ends, or by the reaper.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_S):
                await self._toolbox.finish("agent", context.agent_run_id, context.tenant)


def _with_unique_ids(calls: Sequence[ToolCall], step: int) -> list[ToolCall]:
    """Give each call a unique id, because an answer is matched to its call by id only."""
    used: set[str] = set()
    unique = []
    for place, call in enumerate(calls):
        own = call.id if call.id and call.id not in used else f"call_{step}_{place}"
        while own in used:
            own += "_"
        used.add(own)
        unique.append(ToolCall(own, call.name, call.arguments))
    return unique


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
        value = parse_json_answer(text)
    except ValueError as exc:
        return None, [str(exc)]
    return value, [] if schema is None else check(value, schema)


def _schema_error(agent: Agent, tries: int, problems: list[str]) -> RunFailed:
    return RunFailed(
        f"the answer of agent {agent.name!r} did not match its schema in {tries} tries: "
        + "; ".join(problem[:200] for problem in problems[:5]),
        hint="simplify the schema, or describe it in the prompt",
        reason="output_schema",
        violations=[problem[:500] for problem in problems[:20]],
    )


def _ms(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
