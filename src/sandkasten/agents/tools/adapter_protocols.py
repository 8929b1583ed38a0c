"""What a face of the tools (MCP, Genkit) needs of them, and nothing about who carries them out.

A caller works for one client: what it opens belongs to that client alone, and goes with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Of the schema as a document; said by the tool already, or of no use to a model.
_OF_THE_DOCUMENT: Final = ("$schema", "$id", "title", "description")


class Shape(Protocol):
    """A tool as a model sees it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON Schema of an object."""
        ...


class Caller(Protocol):
    def tools(self) -> Sequence[Shape]: ...
    async def call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """A failure is an answer with `ok` false and the fields of the one error body.

        Cancelled, it ends the command it waits for.
        """
        ...

    async def aclose(self) -> None:
        """Everything the client opened is gone when this returns."""
        ...


def schema_of(shape: Shape) -> dict[str, Any]:
    """What every face shows of the parameters, so that a model sees the same by each of them."""
    return {k: v for k, v in shape.parameters.items() if k not in _OF_THE_DOCUMENT}
