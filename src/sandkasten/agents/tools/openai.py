"""The tools as functions of a chat completion, the shape that OpenAI-compatible endpoints take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandkasten.agents.tools.shapes import ToolSpec

# Of the schema as a document; said by the function already, or of no use to a model.
_OF_THE_DOCUMENT: Final = ("$schema", "$id", "title", "description")


def functions(specs: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """For `tools` of a request; what the model gives goes to `Toolbox.call` by the same name."""
    return [
        {
            "type": "function",
            "function": {
                "name": one.name,
                "description": one.description,
                "parameters": {
                    name: value
                    for name, value in one.parameters.items()
                    if name not in _OF_THE_DOCUMENT
                },
            },
        }
        for one in specs
    ]
