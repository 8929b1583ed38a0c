"""Interface between tool adapters (MCP, Genkit, OpenAI) and the tools.

A caller works for one client: the sandboxes it opens belong to that client and end with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Keywords of a schema document that repeat the tool's name or are useless to a model.
_OF_THE_DOCUMENT: Final = ("$schema", "$id", "title", "description")


class ToolInfo(Protocol):
    """A tool as a model sees it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON Schema of an object."""
        ...


class ToolCaller(Protocol):
    def tools(self) -> Sequence[ToolInfo]: ...
    async def call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call a tool. A failure is an answer with `ok` false and the fields of the error body.

        Cancelling the call kills the command it waits for.
        """
        ...

    async def aclose(self) -> None:
        """Destroy everything that the client opened before returning."""
        ...


def schema_of(shape: ToolInfo) -> dict[str, Any]:
    """Return the parameters as every adapter shows them, so that all models see the same."""
    return {k: v for k, v in shape.parameters.items() if k not in _OF_THE_DOCUMENT}


def openai_functions(tools: Iterable[ToolInfo]) -> list[dict[str, Any]]:
    """Return the `tools` of a request to an OpenAI-compatible endpoint."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": schema_of(tool),
            },
        }
        for tool in tools
    ]
