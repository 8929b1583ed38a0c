"""The tools as functions of a chat completion, the shape that OpenAI-compatible endpoints take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkasten.agents.tools.adapter_protocols import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandkasten.agents.tools.tool_schemas import ToolSpec


def functions(specs: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """For `tools` of a request; what the model gives goes to `Toolbox.call` by the same name."""
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
