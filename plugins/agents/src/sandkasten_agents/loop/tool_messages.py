"""Messages between a model and its tools, within size limits: pure functions.

Tool calls are checked and cleaned. A model's final answer is parsed as JSON, also inside a code
fence. `shortened_answers` decides how much of a tool's answer the model reads.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidRequest
from sandkasten.model.spelling import did_you_mean
from sandkasten_agents.definitions.json_schemas import is_deeper_than
from sandkasten_agents.loop.shortened_answers import shortened
from sandkasten_tools.calls.tool_answers import failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_agents.chat.chat_wire import ToolCall

# Endpoints accept no other function names.
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")
MOST_NAME: Final = 64
_MOST_ECHOED: Final = 2000
_MOST_FENCES: Final = 20
MOST_LEVELS: Final = 64
"""Depth limit of a model's JSON, so that every component can write and read it."""


def function_name(name: str, most: int = MOST_NAME) -> str:
    return _NOT_IN_NAMES.sub("_", name)[:most].strip("_") or "unnamed"


# ---- arguments


def parse_arguments(call: ToolCall, *, cut: bool) -> Mapping[str, Any]:
    """Parse the arguments of a call. Raise InvalidRequest for the model if they are not an
    object.
    """
    if not call.arguments.strip():
        return {}
    try:
        arguments = json.loads(call.arguments, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError) as exc:
        where = f" ({exc})" if isinstance(exc, json.JSONDecodeError) else ""
        raise InvalidRequest(
            f"the arguments of {function_name(call.name)} are not valid JSON{where}",
            hint="your answer was cut at its length limit; write less at once"
            if cut
            else "call it again with one JSON object; escape quotes and line breaks in strings",
        ) from None
    if not isinstance(arguments, dict):
        raise InvalidRequest(
            f"the arguments of {function_name(call.name)} are not a JSON object",
            hint='call it again with one JSON object, such as {"path": "x"}',
        )
    return arguments


def sanitized_call(call: ToolCall) -> dict[str, Any]:
    """Return a call for the conversation: endpoints reject an invalid name or invalid JSON."""
    arguments = call.arguments
    try:
        usable = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        usable = False
    if not usable:
        content = {"malformed": arguments[:_MOST_ECHOED]} if arguments.strip() else {}
        arguments = json.dumps(content, ensure_ascii=False)
    function = {"name": function_name(call.name), "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _refused(word: str) -> None:
    raise ValueError(f"{word} is not valid JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is too large")
    return number


# ---- final answers


def parse_json_answer(text: str) -> Any:
    """Parse a final answer. Raise ValueError with a reason for the model."""
    text = text.strip()
    # A fence is followed by a language name, a line break, and the content.
    fenced = [part.partition("\n")[2] for part in text.split("```")[1:_MOST_FENCES:2]]
    tries = [text, *(part.strip() for part in fenced)]
    reason = "it is empty"
    for candidate in tries:
        if not candidate:
            continue
        try:
            value = json.loads(candidate, parse_constant=_refused, parse_float=_finite)
            if not is_deeper_than(value, MOST_LEVELS):
                return value
            reason = "it is nested too deeply"
        except RecursionError:
            reason = "it is nested too deeply"
        except ValueError as exc:
            reason = str(exc) if reason == "it is empty" else reason
    raise ValueError(f"the answer is not valid JSON: {reason}")


def schema_complaint(problems: list[str]) -> str:
    """Return the message for a model whose answer does not match the schema."""
    listing = "\n".join(f"- {shortened(problem, 500)}" for problem in problems[:20])
    return (
        "Your answer does not match the required schema:\n"
        f"{listing}\n"
        "Send the whole corrected answer again, as JSON only."
    )


def unknown_tool(name: str, offered: list[str]) -> dict[str, Any]:
    return failure(
        InvalidRequest(
            f"unknown tool {function_name(name)!r}",
            hint=did_you_mean(name, offered)
            if offered
            else "this agent has no tools; answer without them",
        )
    )
