"""The tools as Genkit tools, with the same names and schemas.

An answer is that of a direct call; a failure is an answer too, so that a model can read it, and
never an exception in the model's loop. Genkit is imported only by the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkasten_tools.adapter_protocols import schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from genkit import Genkit

    from sandkasten_tools.adapter_protocols import ToolCaller, ToolInfo


def define_tools(ai: Genkit, caller: ToolCaller) -> Sequence[str]:
    """Define every tool of the caller on `ai`; return the names for `generate(tools=…)`."""
    return [_define(ai, caller, tool) for tool in caller.tools()]


def _define(ai: Genkit, caller: ToolCaller, shape: ToolInfo) -> str:
    async def call(arguments: Any) -> dict[str, Any]:
        # Models send null when a tool has no required arguments.
        values = {} if arguments is None else arguments
        return dict(await caller.call(shape.name, values))

    ai.tool(shape.name, shape.description, input_schema=schema_of(shape))(call)
    return shape.name
