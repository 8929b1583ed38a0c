"""What agents cost beside their sandboxes: a tool's call by every way in, and a step of the loop.

Each is held against the same work without us in between, in the same sandbox and in turns. The
model follows a script in this process, so that no step waits for one that thinks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from mcp import Client, StdioServerParameters

from benchmarks.http import Raw, daemon
from benchmarks.peers.bare import CODE
from benchmarks.samples import Samples
from benchmarks.turns import in_turns
from examples.agents.scripted_model import Answer, Asked, Call, ScriptedModel
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten_agents.chat.model_settings import Models, ModelSettings
from sandkasten_agents.definitions.prompt_file import parse_agent
from sandkasten_agents.loop.agent_loop import AgentLoop
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from sandkasten_tools.calls.run_context import RunContext
from sandkasten_tools.calls.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from benchmarks.peers import Peers
    from benchmarks.plan import Plan
    from sandkasten_runtime.engine.engine import Engine

TOOL: Final = "sandbox_exec true"
MCP: Final = "sandbox_exec true over MCP"
HTTP: Final = "sandbox_exec true over HTTP"
RUN: Final = "sandbox_run python"
STEP: Final = "a tool call in an agent's loop"
OURS, ENGINE, HTTP_EXEC, ALONE = "sandkasten", "engine", "HTTP exec", "tool call"
# A round takes some milliseconds, and the medians settle late.
_ROUNDS_FOR_EXEC: Final = 4
_TRUE: Final[Mapping[str, str]] = {"cmd": "true"}
_CONTEXT: Final = RunContext("run_bench", "bench", sandbox=AgentSandbox(mode="code"))
_AGENT: Final = "---\nmodel: scripted\nsandbox:\n  mode: code\n---\nYou are a benchmark.\n"


def measure(samples: Samples, peers: Peers, plan: Plan, scratch: Path) -> None:
    asyncio.run(_measure(samples, peers, plan, scratch))


async def _measure(samples: Samples, peers: Peers, plan: Plan, scratch: Path) -> None:
    async with opened(scratch / "agents") as engine:
        toolbox = Toolbox(engine)
        try:
            await _tool(samples, plan, engine, toolbox)
            await _run(samples, peers, plan, engine, toolbox)
            await _step(samples, plan, toolbox)
        finally:
            await toolbox.finish("agent", _CONTEXT.agent_run_id)
    async with opened(scratch / "mcp") as engine:
        await _mcp(samples, plan, engine, scratch / "mcp")
    await _http(samples, plan, scratch / "tools")


@contextlib.asynccontextmanager
async def opened(data_dir: Path, **flags: str) -> AsyncIterator[Engine]:
    engine = await open_engine(load({"data_dir": str(data_dir), **flags}, {}, data_dir.parent))
    try:
        yield engine
    finally:
        await engine.aclose()


def _execs(plan: Plan) -> int:
    return plan.rounds * plan.execs * _ROUNDS_FOR_EXEC


async def _tool(samples: Samples, plan: Plan, engine: Engine, toolbox: Toolbox) -> None:
    box = _well(await toolbox.call("sandbox_exec", _TRUE, _CONTEXT))["sandbox_id"]

    async def call_toolbox() -> None:
        _well(await toolbox.call("sandbox_exec", _TRUE, _CONTEXT))

    turns = {OURS: call_toolbox, ENGINE: lambda: _direct(engine, box)}
    await in_turns(samples, TOOL, turns, rounds=_execs(plan), plan=plan)


async def _run(
    samples: Samples, peers: Peers, plan: Plan, engine: Engine, toolbox: Toolbox
) -> None:
    async def call_toolbox() -> None:
        answer = await toolbox.call("sandbox_run", {"code": CODE}, _CONTEXT)
        assert answer["stdout"] == "2\n", answer

    async def direct() -> None:
        result = await engine.run(RunRequest(CODE.encode(), "python"))
        assert result.stdout == b"2\n", result

    turns = {OURS: call_toolbox, ENGINE: direct}
    if (docker := peers.docker) is not None:

        async def container() -> None:
            # Meanwhile our engine makes the next one-shot's sandbox, as it does for its users.
            await asyncio.to_thread(docker.oneshot)

        turns["docker"] = container
    await in_turns(samples, RUN, turns, rounds=plan.rounds, plan=plan)


async def _mcp(samples: Samples, plan: Plan, engine: Engine, data_dir: Path) -> None:
    """The real client, the real command; its sandbox is asked by our engine too."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "sandkasten_server.cli", "--data-dir", str(data_dir), "mcp"],
        env=dict(os.environ),
    )
    async with Client(server) as client:

        async def call_server() -> dict[str, Any]:
            answer = await client.call_tool("sandbox_exec", dict(_TRUE))
            return _well(answer.structured_content)

        box = (await call_server())["sandbox_id"]
        turns = {OURS: call_server, ENGINE: lambda: _direct(engine, box)}
        await in_turns(samples, MCP, turns, rounds=_execs(plan), plan=plan)


async def _http(samples: Samples, plan: Plan, data_dir: Path) -> None:
    """By as little of a client as there can be, so that the daemon is what is measured."""
    body = {"arguments": _TRUE}
    with daemon(data_dir) as url, Raw(url, "/v1/tools/sandbox_exec", body) as tool:
        box = _well(tool.ask())["sandbox_id"]
        with Raw(url, f"/v1/sessions/{box}/exec", _TRUE) as plain:

            async def call_server() -> None:
                _well(tool.ask())

            async def direct() -> None:
                _well(plain.ask())

            turns = {OURS: call_server, HTTP_EXEC: direct}
            await in_turns(samples, HTTP, turns, rounds=_execs(plan), plan=plan)
        with Raw(url, "/v1/tools/sandbox_close", {}) as closing:
            assert closing.ask()["closed"]


async def _step(samples: Samples, plan: Plan, toolbox: Toolbox) -> None:
    """A run of one tool call without the two round trips to its model, which are made again."""
    agent = parse_agent(_AGENT, "bench")
    async with (
        ScriptedModel(_script) as model,
        aiohttp.ClientSession() as session,
        AgentLoop(Models(_settings(model)), toolbox, lambda name: agent) as loop,
    ):

        async def trips() -> None:
            bodies = [request.body for request in model.requests[:2]]
            for body in bodies:
                async with session.post(f"{model.base_url}/chat/completions", json=body) as reply:
                    await reply.read()
            model.requests.clear()

        async def once(into: Samples) -> None:
            began = time.perf_counter()
            result = await loop.run(agent, "go", {}, _CONTEXT, _unnoted)
            looped = time.perf_counter()
            assert (result.text, len(model.requests)) == ("done", 2), result
            await trips()
            apart = time.perf_counter()
            into.add(STEP, OURS, (2 * looped - began - apart) * 1000)
            with into.timed(STEP, ALONE):
                _well(await toolbox.call("sandbox_exec", _TRUE, _CONTEXT))

        await once(Samples())
        deadline = time.monotonic() + plan.section_s / 4
        for _ in range(_execs(plan) // 2):
            await once(samples)
            if time.monotonic() > deadline:
                return


def _script(chat: Asked) -> Answer:
    if chat.turn == 0:
        return Answer(calls=[Call("sandbox_exec", dict(_TRUE))])
    assert json.loads(chat.tool_answers[0])["exit_code"] == 0, chat.tool_answers
    return Answer("done")


def _settings(model: ScriptedModel) -> ModelSettings:
    return ModelSettings(base_url=model.base_url, api_key="sk-none", model="scripted")


async def _unnoted(type: str, data: Mapping[str, Any]) -> None:
    """Where a transcript goes is not measured here."""


async def _direct(engine: Engine, box: str) -> None:
    result = await engine.exec(box, ExecRequest("true"))
    assert result.exit_code == 0, result


def _well(answer: Any) -> dict[str, Any]:
    assert answer is not None
    assert answer["exit_code"] == 0, answer
    result: dict[str, Any] = answer
    return result
