"""The tools as chat completion functions and as Python callables."""

from __future__ import annotations

import asyncio
import inspect
import typing

import pytest

from sandkasten_tools.adapter_protocols import openai_functions
from sandkasten_tools.callables import callables, sync_callables
from sandkasten_tools.calls.tool_schemas import TOOLS


def test_a_chat_completion_function_has_the_schema_of_the_tool():
    functions = openai_functions(TOOLS.values())
    assert [function["function"]["name"] for function in functions] == list(TOOLS)
    for function in functions:
        assert set(function) == {"type", "function"}
        spec = TOOLS[function["function"]["name"]]
        assert function["function"]["description"] == spec.description
        parameters = function["function"]["parameters"]
        assert {**spec.parameters, **parameters} == spec.parameters
        assert set(spec.parameters) - set(parameters) == {"$schema", "$id", "title", "description"}


async def test_a_python_callable_has_a_signature_and_a_docstring(unisolated_tools):
    functions = callables(unisolated_tools.toolbox, unisolated_tools.context)
    assert set(functions) == set(TOOLS) - {"sandbox_run"}
    write = functions["sandbox_fs_write"]
    assert str(inspect.signature(write)).startswith(
        "(path: str, contents: str | None = None, *, sandbox_id: str | None = None,"
    )
    assert typing.get_type_hints(functions["sandbox_exec"])["cmd"] == str | list[str] | None
    docstring = inspect.getdoc(write) or ""
    assert docstring.startswith(TOOLS["sandbox_fs_write"].description)
    assert "    path: Relative to /workspace" in docstring
    assert inspect.iscoroutinefunction(write)


async def test_a_python_callable_works_in_its_run(tools):
    functions = callables(tools.toolbox, tools.context)
    written = await functions["sandbox_fs_write"]("x", "hello")
    result = await functions["sandbox_exec"]("cat x")
    assert (written["size_bytes"], result["stdout"]) == (5, "hello")
    assert result["sandbox_id"] == (await tools.call("open"))["sandbox_id"]
    assert (await functions["sandbox_fs_read"](path="none"))["code"] == "FILE_NOT_FOUND"
    with pytest.raises(TypeError):
        await functions["sandbox_fs_read"]()


async def test_synchronous_callables_work_from_another_thread_and_refuse_the_event_loops_own(tools):
    loop = asyncio.get_running_loop()
    functions = sync_callables(tools.toolbox, tools.context, loop)
    result = await asyncio.to_thread(functions["sandbox_exec"], cmd=["echo", "hi"])
    assert result["stdout"] == "hi\n"
    with pytest.raises(RuntimeError, match="await the call instead"):
        functions["sandbox_exec"](cmd="true")
    other = callables(tools.toolbox, tools.context)
    for name, function in functions.items():
        assert inspect.signature(function) == inspect.signature(other[name])
        assert inspect.getdoc(function) == inspect.getdoc(other[name])
