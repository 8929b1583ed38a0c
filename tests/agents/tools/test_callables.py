"""The tools as chat completion functions and as Python callables."""

from __future__ import annotations

import asyncio
import inspect
import typing

import pytest

from sandkasten.agents.tools.adapter_protocols import openai_functions
from sandkasten.agents.tools.callables import callables, sync_callables
from sandkasten.agents.tools.tool_schemas import TOOLS


def test_a_chat_completion_function_has_the_schema_of_the_tool():
    made = openai_functions(TOOLS.values())
    assert [one["function"]["name"] for one in made] == list(TOOLS)
    for one in made:
        assert set(one) == {"type", "function"}
        spec = TOOLS[one["function"]["name"]]
        assert one["function"]["description"] == spec.description
        parameters = one["function"]["parameters"]
        assert {**spec.parameters, **parameters} == spec.parameters
        assert set(spec.parameters) - set(parameters) == {"$schema", "$id", "title", "description"}


async def test_a_python_callable_has_a_signature_and_a_docstring(unisolated_tools):
    made = callables(unisolated_tools.toolbox, unisolated_tools.context)
    assert set(made) == set(TOOLS) - {"sandbox_run"}
    write = made["sandbox_fs_write"]
    assert str(inspect.signature(write)).startswith(
        "(path: str, contents: str | None = None, *, sandbox_id: str | None = None,"
    )
    assert typing.get_type_hints(made["sandbox_exec"])["cmd"] == str | list[str] | None
    told = inspect.getdoc(write) or ""
    assert told.startswith(TOOLS["sandbox_fs_write"].description)
    assert "    path: Relative to /workspace" in told
    assert inspect.iscoroutinefunction(write)


async def test_a_python_callable_works_in_its_run(tools):
    made = callables(tools.toolbox, tools.context)
    written = await made["sandbox_fs_write"]("x", "hello")
    told = await made["sandbox_exec"]("cat x")
    assert (written["size_bytes"], told["stdout"]) == (5, "hello")
    assert told["sandbox_id"] == (await tools.call("open"))["sandbox_id"]
    assert (await made["sandbox_fs_read"](path="none"))["code"] == "FILE_NOT_FOUND"
    with pytest.raises(TypeError):
        await made["sandbox_fs_read"]()


async def test_synchronous_callables_work_from_another_thread_and_refuse_the_event_loops_own(tools):
    loop = asyncio.get_running_loop()
    made = sync_callables(tools.toolbox, tools.context, loop)
    told = await asyncio.to_thread(made["sandbox_exec"], cmd=["echo", "hi"])
    assert told["stdout"] == "hi\n"
    with pytest.raises(RuntimeError, match="await the call instead"):
        made["sandbox_exec"](cmd="true")
    other = callables(tools.toolbox, tools.context)
    for name, function in made.items():
        assert inspect.signature(function) == inspect.signature(other[name])
        assert inspect.getdoc(function) == inspect.getdoc(other[name])
