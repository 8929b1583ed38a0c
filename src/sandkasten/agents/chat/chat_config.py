"""Conversion of an agent's `config:` into fields of a chat completion. Pure.

The names of dotprompt and of OpenAI are accepted; fields that a completion does not have (topK,
apiKey, …) are not sent. InvalidAgent when a value has the wrong type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidAgent

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def wire_config(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        if value is None:
            continue
        if name in _NUMBERS and _is(value, name, "a number", int, float):
            found[_NUMBERS[name]] = value
        elif name in _WHOLE and _is(value, name, "a whole number", int):
            found[_WHOLE[name]] = value
        elif name in _WORDS and _is(value, name, "a string", str):
            found[_WORDS[name]] = value
        elif name in _STOPS:
            found[_STOPS[name]] = _stops(value, name)
    return found


def _is(value: object, name: str, what: str, *kinds: type) -> bool:
    # Rejects NaN and infinity, which JSON lacks, too.
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
