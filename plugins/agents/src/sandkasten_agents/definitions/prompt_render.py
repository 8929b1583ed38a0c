"""First messages to the model: the agent's template rendered with the task and the variables.

The task is the variable `userInput`. If the template has no user message, the task becomes the last
message. Text before any `{{role}}` is the system message if a user message follows, otherwise the
user message.

Variables that do not match the agent's input schema raise InvalidRequest with each problem; a
template that cannot be rendered with them raises InvalidAgent. Limits are those of
`prompt_templates`, and one mebibyte of input.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidAgent, InvalidRequest, PayloadTooLarge
from sandkasten_agents.definitions import json_schemas
from sandkasten_agents.definitions.prompt_templates import (
    MAX_CHARACTERS,
    Mark,
    as_text,
    checked_template,
    render_template,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_agents.definitions.prompt_file import Agent

    Message = dict[str, Any]

TASK: Final = "userInput"
MAX_INPUT_CHARACTERS: Final = MAX_CHARACTERS
_MAX_DEPTH: Final = 32
_MEDIA: Final = re.compile(r"(?:https://|data:)\S+\Z")


def render(agent: Agent, task: str, variables: Mapping[str, Any]) -> list[Message]:
    """Return messages `{role, content}` with the roles system, user and assistant.

    Content is a string, or a list of parts (`{type: text, text}`, `{type: image_url, image_url:
    {url}}`) if the template contains media.
    """
    values = inputs(agent, task, variables)
    template = checked_template(agent.template, first_line=agent.first_line)
    messages = _messages(render_template(template, values))
    task_text = as_text(values.get(TASK))
    opening = messages[0] if messages and messages[0]["role"] is None else None
    users = any(message["role"] == "user" for message in messages)
    if opening is not None:
        alone = not users and (not task_text or TASK in template.words)
        opening["role"] = "user" if alone else "system"
        users = users or alone
    if not users and task_text:
        messages.append({"role": "user", "content": task_text})
    if not messages:
        raise InvalidRequest(
            f"agent {agent.name} has an empty template and got no task",
            hint="pass a task",
            field="task",
        )
    return messages


def inputs(agent: Agent, task: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables, defaults and task as plain data that matches the schema."""
    supplied = _plain(variables)
    _check_size(task, "task")
    task_variable = supplied.pop(TASK, None)
    schema = agent.input_schema or {}
    properties = schema.get("properties", {})
    defaults = {
        name: inner["default"]
        for name, inner in properties.items()
        if isinstance(inner, dict) and "default" in inner
    }
    values = {**defaults, **agent.input_defaults, **supplied}
    if task:
        values[TASK] = task
    elif task_variable is not None:
        values[TASK] = task_variable
    # A schema that does not mention the task does not apply to it.
    judged = {name: value for name, value in values.items() if name != TASK or TASK in properties}
    problems = json_schemas.check(judged, schema) if schema else []
    if problems:
        raise InvalidRequest(
            f"the variables do not match the schema of agent {agent.name}: {'; '.join(problems)}",
            hint="check the input schema",
            field="variables",
            problems=problems,
        )
    return values


def _plain(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with JSON values only, within the size limits."""
    try:
        text = json.dumps(dict(variables), allow_nan=False, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidRequest(
            "the variables are not JSON data", hint="pass JSON values", field="variables"
        ) from exc
    _check_size(text, "variables")
    plain: dict[str, Any] = json.loads(text)
    if json_schemas.is_deeper_than(plain, _MAX_DEPTH):
        raise InvalidRequest(
            f"the variables are nested more than {_MAX_DEPTH} levels deep",
            hint="flatten them",
            field="variables",
        )
    return plain


def _check_size(text: str, name: str) -> None:
    if len(text) > MAX_INPUT_CHARACTERS:
        raise PayloadTooLarge(
            f"{name} has more than {MAX_INPUT_CHARACTERS} characters",
            hint="put large data into a file and pass its path",
            field=name,
        )


def _messages(pieces: list[str | Mark]) -> list[Message]:
    """Return one message per role; the role of the first is None if none was named."""
    stretches: list[tuple[str | None, list[str | Mark]]] = [(None, [])]
    for piece in pieces:
        if isinstance(piece, Mark) and piece.kind == "role":
            stretches.append((piece.values[0], []))
        elif isinstance(piece, Mark) and piece.kind == "history":
            # The history of a conversation would go here; a run starts without one. An answer
            # follows.
            stretches.append(("assistant", []))
        elif not (isinstance(piece, Mark) and piece.kind == "section"):
            stretches[-1][1].append(piece)
    rendered = ((role, _content(inner)) for role, inner in stretches)
    return [{"role": role, "content": content} for role, content in rendered if content]


def _content(pieces: list[str | Mark]) -> str | list[dict[str, Any]]:
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(map(str, pieces)).strip()
    parts: list[dict[str, Any]] = []
    for piece in pieces:
        if isinstance(piece, Mark):
            parts.append({"type": "image_url", "image_url": {"url": _address(piece.values[0])}})
        elif piece.strip():
            parts.append({"type": "text", "text": piece.strip()})
    return parts


def _address(url: str) -> str:
    if not _MEDIA.match(url):
        raise InvalidAgent(
            "media must have an https: or data: URL",
            hint="pass the content as a data: URL, or read the file with a tool",
        )
    return url
