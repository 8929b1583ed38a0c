"""Transcript of a run: each message, call and answer, passed to a callback as it happens.

Strings are truncated to a size limit, which is marked. Keys never reach this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten_agents.loop.shortened_answers import shortened, truncated_json
from sandkasten_tools.calls.tool_answers import failed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sandkasten_agents.chat.chat_wire import Reply, ToolCall

    Note = Callable[[str, Mapping[str, Any]], Awaitable[None]]

MOST_TEXT: Final = 16_000


class Transcript:
    def __init__(self, note: Note, agent: str) -> None:
        self._note = note
        self._agent = agent

    async def add_message(self, role: str, content: object, step: int | None = None) -> None:
        text = (
            content if isinstance(content, str) else truncated_json({"parts": content}, MOST_TEXT)
        )
        data: dict[str, Any] = {
            "agent": self._agent,
            "role": role,
            "text": shortened(text, MOST_TEXT),
        }
        if step is not None:
            data["step"] = step
        await self._note("agent.message", data)

    async def add_answer(self, model: str, reply: Reply, step: int, ms: int) -> None:
        data = {
            "agent": self._agent,
            "model": model,
            "step": step,
            "ms": ms,
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "finish_reason": reply.finish_reason,
            "tool_calls": len(reply.tool_calls),
        }
        await self._note("model.called", data)
        if reply.text or reply.refusal:
            await self.add_message("assistant", reply.text or reply.refusal, step)

    async def add_retry(self, reason: str, pause_s: float) -> None:
        data = {
            "agent": self._agent,
            "reason": shortened(reason, 1000),
            "pause_s": round(pause_s, 3),
        }
        await self._note("model.retried", data)

    async def add_call(self, call: ToolCall, step: int) -> None:
        data = {
            "agent": self._agent,
            "step": step,
            "id": call.id,
            "name": shortened(call.name, 200),
            "arguments": shortened(call.arguments, MOST_TEXT),
        }
        await self._note("tool.called", data)

    async def add_result(
        self, call: ToolCall, answer: Mapping[str, Any], step: int, ms: int
    ) -> None:
        data = {
            "agent": self._agent,
            "step": step,
            "id": call.id,
            "name": shortened(call.name, 200),
            "ok": not failed(dict(answer)),
            "ms": ms,
            "answer": truncated_json(answer, MOST_TEXT),
        }
        await self._note("tool.answered", data)
