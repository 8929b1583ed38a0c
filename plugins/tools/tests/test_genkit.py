"""The tools on a real Genkit with a model in this process, compared with the other interfaces."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client

from sandkasten.client.server.daemon_or_embedded import ServerAddress
from sandkasten_tools.adapter_protocols import openai_functions
from sandkasten_tools.calls.tool_schemas import TOOLS
from sandkasten_tools.mcp.mcp_server import OneCaller, mcp_server
from sandkasten_tools.tool_access import open_tools

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plugins.tools.tests.scripted_genkit import Model

pytestmark = pytest.mark.promise("P65")

RUN = {"code": "import sys; print(6 * 7); print(sys.argv[1], file=sys.stderr)", "args": ["x"]}


async def asked(caller: Any, script: Sequence[tuple[str, Any]]) -> Model:
    # Not above: every process that collects tests would import Genkit, which takes a second.
    from plugins.tools.tests import scripted_genkit

    return await scripted_genkit.asked(caller, script)


async def test_a_model_sees_every_tool_and_works_with_a_sandbox(tmp_path):
    async with open_tools(ServerAddress(str(tmp_path / "d"), "local"), mode="code") as tools:
        model = await asked(
            tools,
            [
                ("sandbox_open", None),
                ("sandbox_fs_write", {"path": "a", "text": "grün\n"}),
                ("sandbox_exec", {"cmd": "cat a; exit 3"}),
                ("sandbox_exec", {"cmd": 7}),
                ("sandbox_close", {}),
            ],
        )
    assert [
        {"name": t["name"], "description": t["description"], "parameters": t["inputSchema"]}
        for t in model.offered
    ] == [
        function["function"]
        for function in openai_functions(t for t in TOOLS.values() if t.mode == "code")
    ]
    opened, written, ran, refused, closed = model.answers
    assert (opened["status"], written["size_bytes"]) == ("ready", 6)
    assert (ran["output"], ran["exit_code"]) == ("grün\n", 3)
    assert (refused["ok"], refused["code"]) == (False, "INVALID_REQUEST")
    assert closed["closed"]


def same(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer without the values that differ between runs."""
    return {k: v for k, v in answer.items() if k not in ("duration_ms", "sandbox_id")}


async def test_every_interface_answers_like_a_direct_call(tmp_path):
    async with open_tools(ServerAddress(str(tmp_path / "d"), "local")) as tools:
        direct = await tools.call("sandbox_run", RUN)
        model = await asked(tools, [("sandbox_run", RUN)])
        async with Client(mcp_server(tools.tools(), OneCaller(tools))) as client:
            answer = await client.call_tool("sandbox_run", RUN)
            listed = (await client.list_tools()).tools
    assert (direct["stdout"], direct["stderr"], direct["ok"]) == ("42\n", "x\n", True)
    assert same(model.answers[0]) == same(direct)
    assert same(answer.structured_content or {}) == same(direct)
    assert same(json.loads(getattr(answer.content[0], "text"))) == same(direct)  # noqa: B009
    assert [t.name for t in listed] == [t["name"] for t in model.offered] == list(TOOLS)
    assert [t.input_schema for t in listed] == [t["inputSchema"] for t in model.offered]
