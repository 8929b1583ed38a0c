"""A chat completions endpoint that follows a script, for demonstrations and tests.

    python scripted_model.py script.json [--port 8600]

It uses the wire format of OpenAI's endpoint, streamed or not. A script decides what to answer from
the conversation alone, so one server can play all agents of a workflow, in any order and at the
same time:

    {"agents": [
        {"system": "You write code",
         "turns": [
            {"calls": [{"name": "sandbox_exec", "arguments": {"command": "python3 main.py"}}]},
            {"text": "It printed ${last.stdout}"}]},
        {"turns": [{"text": "You said ${user}"}]}]}

The first entry whose `system` occurs in the first message of the conversation answers; the number
of earlier answers selects the turn, and the last turn is repeated. In strings and arguments,
`${user}` is the last message of the user, `${last}` the last tool result, and `${last.stdout}` a
field of it. Needs aiohttp.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

Fault = Literal["hang", "silent", "drop", "endless", "huge_line"]
"""hang: no response; silent: the response starts and stops; drop: the connection breaks in the
middle; endless: the response never ends; huge_line: one line without end."""


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Any = field(default_factory=dict)
    """A string is sent unchanged, so it may be invalid JSON."""
    id: str | None = None
    """None generates an id."""


@dataclass(frozen=True)
class Answer:
    """The response to one request."""

    text: str = ""
    calls: Sequence[Call] = ()
    finish_reason: str | None = None
    refusal: str | None = None
    usage: tuple[int, int] | None = (10, 5)
    """Tokens of the prompt and of the answer; None omits them."""
    stream: bool = True
    """False sends the answer at once, even if a stream was requested."""
    bytes_at_once: int | None = None
    """Send at most this many bytes at once, regardless of characters and lines."""
    piece: int = 7
    """Characters of text or arguments in one chunk of a stream."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """Sent instead of everything above."""
    content_type: str | None = None
    fault: Fault | None = None


@dataclass(frozen=True)
class Asked:
    """One request as a script sees it."""

    body: Mapping[str, Any]
    headers: Mapping[str, str]
    number: int
    """Number of the request, from 0."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        return list(self.body.get("messages", []))

    @property
    def system(self) -> str:
        return str(self.messages[0].get("content") or "") if self.messages else ""

    @property
    def user(self) -> str:
        user_messages = [message for message in self.messages if message.get("role") == "user"]
        return str(user_messages[-1].get("content") or "") if user_messages else ""

    @property
    def turn(self) -> int:
        """Number of model answers in this conversation."""
        return sum(message.get("role") == "assistant" for message in self.messages)

    @property
    def tool_answers(self) -> list[str]:
        return [
            str(message.get("content"))
            for message in self.messages
            if message.get("role") == "tool"
        ]

    @property
    def last(self) -> Any:
        """The last tool result, decoded if it is JSON."""
        content = self.tool_answers[-1] if self.tool_answers else ""
        try:
            return json.loads(content)
        except ValueError:
            return content


Script = Sequence[Answer] | Callable[[Asked], Answer]
"""A list answers request by request; a function decides from the conversation."""


class ScriptedModel:
    """`async with ScriptedModel(script) as model:` listens at `model.base_url`."""

    def __init__(self, script: Script, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.requests: list[Asked] = []
        self.gone: int = 0
        """Number of clients that disconnected before their answer was complete."""
        self.base_url = ""
        self._script = script
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None
        self._closing = asyncio.Event()

    async def __aenter__(self) -> ScriptedModel:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.base_url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        chat = Asked(await request.json(), dict(request.headers), len(self.requests))
        self.requests.append(chat)
        try:
            return await self._send(request, chat, self._next(chat))
        except asyncio.CancelledError:
            self.gone += 1
            raise
        except ConnectionError:
            # The client disconnected.
            self.gone += 1
            return web.Response()

    def _next(self, chat: Asked) -> Answer:
        if callable(self._script):
            return self._script(chat)
        if chat.number < len(self._script):
            return self._script[chat.number]
        body = {"error": {"message": "the script is over", "code": "script_over"}}
        return Answer(status=400, raw=json.dumps(body).encode())

    async def _send(self, request: web.Request, chat: Asked, answer: Answer) -> web.StreamResponse:
        if answer.fault == "hang":
            await self._closing.wait()
        streamed = bool(chat.body.get("stream")) and answer.stream and answer.raw is None
        kind = "text/event-stream" if streamed else "application/json"
        response = web.StreamResponse(
            status=answer.status,
            headers={"Content-Type": answer.content_type or kind, **answer.headers},
        )
        if answer.raw is not None:
            body = answer.raw
        elif streamed:
            body = b"".join(_events(chat, answer))
        else:
            body = json.dumps(_whole(chat, answer), ensure_ascii=False).encode()
        await response.prepare(request)
        if answer.fault is not None:
            await self._misbehave(request, response, body, answer.fault)
            return response
        step = answer.bytes_at_once or len(body) or 1
        for at in range(0, len(body), step):
            await response.write(body[at : at + step])
            if answer.bytes_at_once:
                # Send chunks one by one, like a slow network.
                await asyncio.sleep(0)
        await response.write_eof()
        return response

    async def _misbehave(
        self, request: web.Request, response: web.StreamResponse, body: bytes, fault: Fault
    ) -> None:
        if fault == "huge_line":
            await response.write(b"data: ")
            while not self._closing.is_set():
                await response.write(b"x" * 65536)
        events = body.split(b"\n\n")
        half = b"\n\n".join(events[: max(1, len(events) // 2)]) + b"\n\n"
        await response.write(half)
        if fault == "endless":
            while not self._closing.is_set():
                await response.write(events[0] + b"\n\n")
        if fault == "silent":
            await self._closing.wait()
        if request.transport is not None:
            request.transport.abort()


# ---- the wire format


def _frame(chat: Asked, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{chat.number}",
        "object": kind,
        "created": 0,
        "model": chat.body.get("model", ""),
    }


def _reason(answer: Answer) -> str:
    return answer.finish_reason or ("tool_calls" if answer.calls else "stop")


def _usage(answer: Answer) -> dict[str, int]:
    prompt, completion = answer.usage or (0, 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _calls(chat: Asked, answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{chat.number}_{place}" if call.id is None else call.id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": call.arguments
                if isinstance(call.arguments, str)
                else json.dumps(call.arguments, ensure_ascii=False),
            },
        }
        for place, call in enumerate(answer.calls)
    ]


def _whole(chat: Asked, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        message["tool_calls"] = _calls(chat, answer)
    if answer.refusal is not None:
        message["refusal"] = answer.refusal
    completion = _frame(chat, "chat.completion")
    completion["choices"] = [{"index": 0, "message": message, "finish_reason": _reason(answer)}]
    if answer.usage is not None:
        completion["usage"] = _usage(answer)
    return completion


def _events(chat: Asked, answer: Answer) -> list[bytes]:
    frame = _frame(chat, "chat.completion.chunk")
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": part} for part in _parts(answer.text, answer.piece)]
    if answer.refusal is not None:
        deltas.append({"refusal": answer.refusal})
    for index, call in enumerate(_calls(chat, answer)):
        arguments = call["function"]["arguments"]
        begin = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        deltas.append({"tool_calls": [begin]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
            for part in _parts(arguments, answer.piece)
        ]
    chunks = [
        {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    end = {"index": 0, "delta": {}, "finish_reason": _reason(answer)}
    chunks.append({**frame, "choices": [end]})
    if answer.usage is not None and chat.body.get("stream_options", {}).get("include_usage"):
        chunks.append({**frame, "choices": [], "usage": _usage(answer)})
    encoded = [json.dumps(chunk, ensure_ascii=False).encode() for chunk in chunks]
    return [b"data: " + line + b"\n\n" for line in (*encoded, b"[DONE]")]


def _parts(text: str, length: int) -> list[str]:
    return [text[at : at + length] for at in range(0, len(text), length)]


# ---- scripts in files

_BLANK = re.compile(r"\$\{(user|last)((?:\.\w+)*)\}")


def script_of(data: Mapping[str, Any]) -> Callable[[Asked], Answer]:
    """Return the script of a file; the module docstring describes the format."""

    def answer(chat: Asked) -> Answer:
        for entry in data["agents"]:
            if entry.get("system", "") in chat.system:
                turns = entry["turns"]
                turn = turns[min(chat.turn, len(turns) - 1)]
                return _answer_of(turn, chat)
        body = {"error": {"message": "the script has no entry for this agent"}}
        return Answer(status=400, raw=json.dumps(body).encode())

    return answer


def _answer_of(turn: Mapping[str, Any], chat: Asked) -> Answer:
    text = turn.get("text", "")
    filled = _filled(text, chat)
    return Answer(
        text=filled if isinstance(filled, str) else json.dumps(filled, ensure_ascii=False),
        calls=[
            Call(call["name"], _filled(call.get("arguments", {}), chat))
            for call in turn.get("calls", [])
        ],
    )


def _filled(value: Any, chat: Asked) -> Any:
    if isinstance(value, dict):
        return {name: _filled(item, chat) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, chat) for item in value]
    if not isinstance(value, str):
        return value

    def fill(blank: re.Match[str]) -> str:
        content: Any = chat.user if blank[1] == "user" else chat.last
        for name in blank[2].split(".")[1:]:
            content = content.get(name, "") if isinstance(content, dict) else ""
        return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)

    return _BLANK.sub(fill, value)


async def _serve(script: Script, host: str, port: int) -> None:
    async with ScriptedModel(script, host=host, port=port) as model:
        print(model.base_url, flush=True)
        await asyncio.Event().wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="A model that follows a script.")
    parser.add_argument("script", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free; it is printed")
    arguments = parser.parse_args()
    try:
        script = script_of(json.loads(arguments.script.read_text()))
        asyncio.run(_serve(script, arguments.host, arguments.port))
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
