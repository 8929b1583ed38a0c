"""The tools as plain Python functions of one run, for frameworks that read signatures.

Each has the names, types and descriptions of its schema; an argument that is None counts as
omitted. They answer like `Toolbox.call` and raise nothing else, except that an unknown or missing
argument is a TypeError, as for any Python function.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeAlias

    from sandkasten_tools.calls.run_context import RunContext
    from sandkasten_tools.calls.tool_schemas import ToolSpec
    from sandkasten_tools.calls.toolbox import Toolbox

    Answer: TypeAlias = dict[str, Any]

_TYPES: Mapping[str, object] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[str],
    "object": dict[str, Any],
}


def callables(toolbox: Toolbox, context: RunContext) -> dict[str, Callable[..., Awaitable[Answer]]]:
    """Return the tools of the context's sandbox as coroutine functions, by name."""
    return {spec.name: _function(toolbox, context, spec) for spec in toolbox.specs(context.sandbox)}


def sync_callables(
    toolbox: Toolbox, context: RunContext, loop: asyncio.AbstractEventLoop
) -> dict[str, Callable[..., Answer]]:
    """Return the tools as blocking functions, for threads other than that of the engine's
    `loop`.
    """
    return {
        name: _blocking(function, loop) for name, function in callables(toolbox, context).items()
    }


def _function(
    toolbox: Toolbox, context: RunContext, spec: ToolSpec
) -> Callable[..., Awaitable[Answer]]:
    signature = _signature(spec)

    async def call(*args: Any, **named: Any) -> Answer:
        arguments = signature.bind(*args, **named).arguments
        return await toolbox.call(
            spec.name, {k: v for k, v in arguments.items() if v is not None}, context
        )

    _set_metadata(call, spec.name, _docstring(spec), signature)
    return call


def _blocking(
    function: Callable[..., Awaitable[Answer]], loop: asyncio.AbstractEventLoop
) -> Callable[..., Answer]:
    signature = inspect.signature(function)

    def call(*args: Any, **named: Any) -> Answer:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            raise RuntimeError(
                "this thread runs the event loop that must answer; await the call instead"
            )
        signature.bind(*args, **named)

        async def answered() -> Answer:
            return await function(*args, **named)

        return asyncio.run_coroutine_threadsafe(answered(), loop).result()

    _set_metadata(call, function.__name__, inspect.getdoc(function) or "", signature)
    return call


def _set_metadata(function: Any, name: str, doc: str, signature: inspect.Signature) -> None:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    function.__signature__ = signature
    function.__annotations__ = {
        parameter.name: parameter.annotation for parameter in signature.parameters.values()
    } | {"return": signature.return_annotation}


def _signature(spec: ToolSpec) -> inspect.Signature:
    """Return a signature: required arguments are positional, others keyword-only with default
    None.
    """
    properties, needed = spec.parameters["properties"], spec.parameters["required"]
    by_place = [*needed, *spec.one_of[:1]]
    return inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD
                if name in by_place
                else inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if name in needed else None,
                annotation=_type(properties[name])
                if name in needed
                else _type(properties[name]) | None,
            )
            for name in [*by_place, *(name for name in properties if name not in by_place)]
        ],
        return_annotation=dict[str, Any],
    )


def _type(schema: Mapping[str, Any]) -> Any:
    if "anyOf" not in schema:
        return _TYPES[schema["type"]]
    union: Any = _type(schema["anyOf"][0])
    for alternative in schema["anyOf"][1:]:
        union |= _type(alternative)
    return union


def _docstring(spec: ToolSpec) -> str:
    lines = [spec.description, "", "Args:"]
    lines += [
        f"    {name}: {schema['description']}"
        for name, schema in spec.parameters["properties"].items()
    ]
    return "\n".join(lines)
