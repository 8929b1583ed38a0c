"""The tools as functions of a chat completion, in the format of OpenAI-compatible endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkasten.agents.tools.adapter_protocols import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandkasten.agents.tools.tool_schemas import ToolSpec


def functions(specs: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Return `tools` for a request; pass the model's arguments to `Toolbox.call` by the same
    name.
    """
    return [
        {
            "type": "function",
            "function": {
                "name": one.name,
                "description": one.description,
                "parameters": schema_of(one),
            },
        }
        for one in specs
    ]
