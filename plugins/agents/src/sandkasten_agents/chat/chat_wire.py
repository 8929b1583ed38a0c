"""Wire format of chat completions: request bodies, and answers assembled from chunks. Pure.

The endpoint is untrusted, so every answer is bounded in length, count and type before use; an
invalid answer raises `Unreadable` and nothing else. An invalid `config:` of an agent is
InvalidAgent.
"""

from __future__ import annotations

import json
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidAgent
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# One chunk of a stream. Arguments of 1 MiB grow when they are quoted twice.
MOST_LINE_BYTES: Final = 4 << 20
# One chunk for each of 200,000 tokens, with 300 bytes of overhead each.
MOST_BYTES: Final = 64 << 20
MOST_TEXT: Final = 4 << 20
MOST_CALLS: Final = 64
MOST_ARGUMENTS: Final = 1 << 20
_MOST_NAME: Final = 256
_MOST_TOKENS: Final = 1 << 40
# Fields of an agent's `config:`, and their names in a chat completion.
_NUMBERS: Final = {
    "temperature": "temperature",
    "topP": "top_p",
    "top_p": "top_p",
    "presencePenalty": "presence_penalty",
    "presence_penalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "frequency_penalty": "frequency_penalty",
}
_WHOLE: Final = {
    "maxOutputTokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_tokens": "max_tokens",
    "maxTokens": "max_tokens",
    "seed": "seed",
}
_WORDS: Final = {"reasoningEffort": "reasoning_effort", "reasoning_effort": "reasoning_effort"}
_STOPS: Final = {"stopSequences": "stop", "stop_sequences": "stop", "stop": "stop"}
_MOST_STOPS: Final = 16


class Unreadable(ValueError):
    """The answer is not a valid chat completion. The message gives our reason."""


class EndpointError(Exception):
    """The endpoint sent an error instead of an answer."""

    def __init__(self, error: object) -> None:
        super().__init__("an error in place of the answer")
        self.error = error


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as sent by the model: the id may be empty, the arguments invalid JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    refusal: str = ""
    prompt_tokens: int = 0
    """0 if the endpoint does not report it."""
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Request with `messages` and `tools` in wire format."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    response_format: Mapping[str, Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """Options such as temperature, by their wire names."""

    def body(self, model: str, *, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {**self.config, "model": model, "messages": list(self.messages)}
        if self.tools:
            body["tools"] = list(self.tools)
        if self.response_format is not None:
            body["response_format"] = self.response_format
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


def encoded(body: object) -> bytes:
    # A lone surrogate, as a sandbox can produce, is sent as a question mark.
    return json.dumps(body, ensure_ascii=False, default=str).encode("utf-8", "replace")


def decoded(raw: bytes | str) -> Any:
    """Parse JSON. Raise Unreadable for any failure, including limits of Python's parser."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise Unreadable("a piece of it is not valid JSON") from None


class EventParser:
    """Parser of server-sent events from bytes split anywhere."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._held = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        # Search only the new bytes: a long line in small pieces must not take quadratic time.
        start = len(self._rest)
        self._rest += piece
        if self._rest.find(b"\n", start) < 0:
            self._bound(len(self._rest))
            return
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            yield from self._line(line.removesuffix(b"\r"))
        self._bound(len(self._rest))

    def end(self) -> Iterator[bytes]:
        """Return the last event of a stream that has no blank line at its end."""
        yield from self._line(bytes(self._rest).removesuffix(b"\r"))
        self._rest.clear()
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[bytes]:
        if not line:
            if self._data:
                yield b"\n".join(self._data)
                self._data.clear()
                self._held = 0
        elif line.startswith(b"data:"):
            self._held += len(line)
            self._bound(self._held)
            self._data.append(line[5:].removeprefix(b" "))

    def _bound(self, length: int) -> None:
        if length > MOST_LINE_BYTES:
            raise Unreadable(f"a chunk is longer than {MOST_LINE_BYTES >> 20} MiB")


@dataclass(slots=True)
class _Call:
    place: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    length: int = 0


class ReplyAssembly:
    """One answer, assembled from chunks or from a whole body. Only the first choice is used."""

    def __init__(self) -> None:
        self.begun = False
        """Whether any token of the model has arrived."""
        self.finish_reason = ""
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._length = 0
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}
        """The latest call for each index."""
        self._prompt_tokens = 0
        self._completion_tokens = 0

    def add_piece(self, raw: bytes) -> None:
        self._add(decoded(raw), "delta")

    def add_whole(self, raw: bytes) -> None:
        self._add(decoded(raw), "message")
        if not self.begun and not self.finish_reason:
            raise Unreadable("it contains no choice")

    def reply(self) -> Reply:
        calls = sorted(self._calls, key=lambda call: call.place)
        return Reply(
            text=_join_surrogates("".join(self._text)),
            tool_calls=tuple(
                ToolCall(
                    _join_surrogates(call.id),
                    _join_surrogates(call.name),
                    _join_surrogates("".join(call.arguments)),
                )
                for call in calls
            ),
            finish_reason=self.finish_reason,
            refusal=_join_surrogates("".join(self._refusal)),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
        )

    def _add(self, chunk: object, key: str) -> None:
        if not isinstance(chunk, dict):
            raise Unreadable("a chunk is not an object")
        if chunk.get("error"):
            raise EndpointError(chunk["error"])
        self._count(chunk.get("usage"))
        choices = chunk.get("choices")
        if choices is None:
            return
        if not isinstance(choices, list):
            raise Unreadable("`choices` is not a list")
        for choice in choices:
            if not isinstance(choice, dict):
                raise Unreadable("a choice is not an object")
            if choice.get("index", 0) in (0, None):
                self._choose(choice, key)

    def _choose(self, choice: dict[str, Any], key: str) -> None:
        delta = choice.get(key)
        if delta is not None and not isinstance(delta, dict):
            raise Unreadable(f"the {key} of a choice is not an object")
        if delta:
            self._add_text(self._text, delta.get("content"))
            self._add_text(self._refusal, delta.get("refusal"))
            self._add_calls(delta.get("tool_calls"), whole=key == "message")
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self.finish_reason = reason[:_MOST_NAME].lower()

    def _add_text(self, where: list[str], content: object) -> None:
        if content is None or content == "":
            return
        if isinstance(content, list):
            # A list of parts; only text parts are content.
            for part in content:
                self._add_text(where, part.get("text") if isinstance(part, dict) else None)
            return
        if not isinstance(content, str):
            raise Unreadable("`content` is not a string")
        self.begun = True
        self._length += len(content)
        if self._length > MOST_TEXT:
            raise Unreadable(f"`content` is longer than {MOST_TEXT >> 20} Mi characters")
        where.append(content)

    def _add_calls(self, calls: object, *, whole: bool) -> None:
        if calls is None:
            return
        if not isinstance(calls, list):
            raise Unreadable("`tool_calls` is not a list")
        for place, call in enumerate(calls):
            if not isinstance(call, dict):
                raise Unreadable("a tool call is not an object")
            self._add_call(call, place if whole else call.get("index"))

    def _add_call(self, call: dict[str, Any], index: object) -> None:
        self.begun = True
        told_id = _checked_short(call.get("id"), "the id of a tool call")
        function = call.get("function") or {}
        if not isinstance(function, dict):
            raise Unreadable("the function of a tool call is not an object")
        name = _checked_short(function.get("name"), "the name of a tool")
        assembled = self._find_call(index, told_id, name)
        assembled.id = assembled.id or told_id
        # Most endpoints send it once; those that repeat it in each chunk send it whole.
        if name and name != assembled.name:
            assembled.name = _checked_short(assembled.name + name, "the name of a tool")
        arguments = function.get("arguments")
        if arguments is None:
            return
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments)
        if not isinstance(arguments, str):
            raise Unreadable("the arguments of a tool call are not a string")
        assembled.length += len(arguments)
        if assembled.length > MOST_ARGUMENTS:
            raise Unreadable(f"a tool call's arguments exceed {MOST_ARGUMENTS >> 20} Mi characters")
        assembled.arguments.append(arguments)

    def _find_call(self, index: object, id: str, name: str) -> _Call:
        """Return the call that a chunk belongs to.

        Endpoints differ: some send no index, some the same index for every call, and some a new id
        in each chunk. A name comes only in the first chunk of a call.
        """
        if index is None:
            last = self._calls[-1] if self._calls else None
            if last is None or (id != last.id if id else name):
                return self._new_call(len(self._calls))
            return last
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < MOST_CALLS:
            raise Unreadable(f"the index of a tool call is not below {MOST_CALLS}")
        there = self._at.get(index)
        if there is None or (id and name and there.id and there.name and id != there.id):
            there = self._at[index] = self._new_call(index)
        return there

    def _new_call(self, place: int) -> _Call:
        if len(self._calls) >= MOST_CALLS:
            raise Unreadable(f"it has more than {MOST_CALLS} tool calls")
        self._calls.append(_Call(place))
        return self._calls[-1]

    def _count(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        # Some endpoints send running totals in every chunk; the last one counts.
        self._prompt_tokens = _tokens(usage.get("prompt_tokens"))
        self._completion_tokens = _tokens(usage.get("completion_tokens"))


def _tokens(value: object) -> int:
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS
    return value if usable and isinstance(value, int) else 0


def _checked_short(value: object, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > _MOST_NAME:
        raise Unreadable(f"{what} is not a short string")
    return value


def _join_surrogates(text: str) -> str:
    """Join surrogate pairs that were split between chunks, and replace lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def wire_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat completion for an agent's `config:`.

    The names of dotprompt and of OpenAI are accepted; fields that a completion does not have
    (topK, apiKey, …) are left out.
    """
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if value is None:
            continue
        if name in _NUMBERS and _is(value, name, "a number", int, float):
            fields[_NUMBERS[name]] = value
        elif name in _WHOLE and _is(value, name, "a whole number", int):
            fields[_WHOLE[name]] = value
        elif name in _WORDS and _is(value, name, "a string", str):
            fields[_WORDS[name]] = value
        elif name in _STOPS:
            fields[_STOPS[name]] = _stops(value, name)
    return fields


def _is(value: object, name: str, what: str, *kinds: type) -> bool:
    # NaN, which JSON does not have, does not equal itself.
    if isinstance(value, kinds) and not isinstance(value, bool) and value == value:
        return True
    raise _wrong(name, what)


def _stops(value: object, name: str) -> list[str]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or len(words) > _MOST_STOPS:
        raise _wrong(name, f"a list of at most {_MOST_STOPS} texts")
    if not all(isinstance(word, str) for word in words):
        raise _wrong(name, "a list of strings")
    return list(words)


def _wrong(name: str, what: str) -> InvalidAgent:
    return InvalidAgent(
        f"config.{name} of the agent is not {what}",
        hint="correct it in the agent's file",
        field=f"config.{name}",
    )
