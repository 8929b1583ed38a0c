"""The tools on a Genkit instance, under their own names and with their own schemas.

What a tool answers is what a direct call answers; a failure is an answer too, so that a model can
read it, and never an exception in its loop. Genkit is imported by whoever has an instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkasten.agents.tools.adapter_protocols import schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from genkit import Genkit

    from sandkasten.agents.tools.adapter_protocols import Caller, Shape


def define_tools(ai: Genkit, caller: Caller) -> Sequence[str]:
    """Define every tool of the caller on `ai`; their names, as `generate(tools=…)` takes them."""
    return [_define(ai, caller, one) for one in caller.tools()]


def _define(ai: Genkit, caller: Caller, shape: Shape) -> str:
    async def call(arguments: Any) -> dict[str, Any]:
        # Models send null where a tool needs nothing.
        given = {} if arguments is None else arguments
        return dict(await caller.call(shape.name, given))

    ai.tool(shape.name, shape.description, input_schema=schema_of(shape))(call)
    return shape.name
