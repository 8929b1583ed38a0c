"""Runs whose process is killed, stopped or interrupted: what continues, is lost, and is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import replace

import aiohttp
import pytest

from sandkasten.client.server.embedded import ServerAddress, open_engine
from sandkasten.model.optional_extras import install_command
from sandkasten_agents.agent_service import PLAIN_IDLE_S, TOUCH_EVERY_S
from sandkasten_runtime.store.run_directory import RunDirectory
from tests.agents.agency import environ_for, files_in, played, until
from tests.daemon.process import DaemonProcess, ask, cleared, running
from tests.models.server import ScriptedModel

LONG = os.environ.get("TEST_SANDKASTEN_LONG") == "1"
# A handful of programs are started one after the other.
pytestmark = pytest.mark.timeout(300)


class Model:
    """Hangs where the task says so, until it is released."""

    def __init__(self) -> None:
        self.hangs = True

    def __call__(self, asked):
        told = played(asked)
        if told.fault is not None and not self.hangs:
            return replace(told, text="written", fault=None)
        return told


@pytest.fixture
async def scene(tmp_path):
    files_in(tmp_path)
    script = Model()
    async with ScriptedModel(script) as model:
        environ = environ_for(tmp_path, model, SANDKASTEN_BACKEND="local")
        yield tmp_path / "data", environ, script
    await cleared(tmp_path / "data")


async def answered(data_dir, run_id: str) -> None:
    """Wait until a tool has answered in that run."""
    runs = RunDirectory(data_dir / "runs")

    async def look() -> object:
        types = [one.type for one in await runs.events(run_id)]
        return "tool.answered" in types or types

    await until(look, f"an answered tool in {run_id}")


async def step_of(data_dir, run_id: str) -> str:
    runs = RunDirectory(data_dir / "runs")
    found: list[str] = []

    async def look() -> object:
        found[:] = [row.id for row in await runs.list(None) if row.parent_id == run_id]
        return bool(found)

    await until(look, f"a step of {run_id}")
    return found[0]


async def over(http, url: str, run_id: str) -> dict:
    found: dict = {}

    async def look() -> object:
        _, told = await ask(http, "GET", f"{url}/runs/{run_id}")
        found.update(told)
        return bool(told["done"]) or told["status"]

    await until(look, f"the end of {run_id}")
    return found


@pytest.mark.promise("P69")
async def test_a_killed_daemon_continues_workflows_and_abandons_agents(scene):
    data_dir, environ, script = scene
    async with aiohttp.ClientSession() as http, running(data_dir, environ=environ) as daemon:
        flow = {"workflow_id": "flow", "input": {"text": "hang"}}
        _, flow_run = await ask(http, "POST", f"{daemon.url}/workflow-runs", flow)
        body = {"agent_name": "writer", "task": "hang"}
        _, agent_run = await ask(http, "POST", f"{daemon.url}/execute", body)
        step = await step_of(data_dir, flow_run["run_id"])
        for run_id in (step, agent_run["run_id"]):
            await answered(data_dir, run_id)
        _, before = await ask(http, "GET", f"{daemon.url}/v1/sessions")
        keys = {one["session_key"]: one["id"] for one in before}
        await daemon.kill()
        script.hangs = False
        await daemon.start()
        done = await over(http, daemon.url, flow_run["run_id"])
        assert done["status"] == "completed", done["error"]
        # The step that was at work is done again, and the next one reads what it wrote.
        assert done["output"]["said"] == "write hang"
        for run_id in (step, agent_run["run_id"]):
            assert (await over(http, daemon.url, run_id))["status"] == "lost"
        _, events = await ask(http, "GET", f"{daemon.url}/runs/{flow_run['run_id']}/events")
        assert "run.resumed" in [one["type"] for one in events["events"]]

        async def gone() -> object:
            _, left = await ask(http, "GET", f"{daemon.url}/v1/sessions")
            return left == [] or left

        await until(gone, f"sessions that are left of {keys}")


@pytest.mark.promise("P69")
@pytest.mark.long(reason="`make test` has it for a daemon that is killed")
async def test_a_stopped_daemon_leaves_workflows_to_the_next_one(scene):
    data_dir, environ, script = scene
    environ = {**environ, "SANDKASTEN_DRAIN_SECONDS": "0.2"}
    async with aiohttp.ClientSession() as http, running(data_dir, environ=environ) as daemon:
        flow = {"workflow_id": "flow", "input": {"text": "hang"}}
        _, flow_run = await ask(http, "POST", f"{daemon.url}/workflow-runs", flow)
        body = {"agent_name": "writer", "task": "hang"}
        _, agent_run = await ask(http, "POST", f"{daemon.url}/execute", body)
        for run_id in (await step_of(data_dir, flow_run["run_id"]), agent_run["run_id"]):
            await answered(data_dir, run_id)
        assert await daemon.stop() == 0
        runs = RunDirectory(data_dir / "runs")
        rows = [await runs.get(one["run_id"]) for one in (flow_run, agent_run)]
        assert [row and row.status for row in rows] == ["running", "cancelled"]
        script.hangs = False
        await daemon.start()
        done = await over(http, daemon.url, flow_run["run_id"])
        assert (done["status"], done["output"]["said"]) == ("completed", "write hang")


async def command(data_dir, environ, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sandkasten_server.cli", "--data-dir", str(data_dir)),
        *("--embedded", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environ},
    )  # fmt: skip


async def only_run(data_dir) -> str:
    runs = RunDirectory(data_dir / "runs")
    found: list[str] = []

    async def look() -> object:
        found[:] = [row.id for row in await runs.list(None)]
        return bool(found)

    await until(look, "a run")
    await answered(data_dir, found[0])
    return found[0]


@pytest.mark.promise("P64")
async def test_a_killed_command_leaves_a_sandbox_that_ends_by_itself_within_a_minute(scene):
    data_dir, environ, _ = scene
    process = await command(data_dir, environ, "agent", "run", "writer", "hang")
    run_id = await only_run(data_dir)
    process.kill()
    await process.communicate()
    engine = await open_engine(ServerAddress(str(data_dir), "local"))
    try:
        [info] = await engine.list()
        assert info.session_key == f"agent:{run_id}:default"
        # Also with a command at work in it: it is as old as this at most.
        assert info.idle_timeout_s == PLAIN_IDLE_S
        assert info.expires_at - time.time() <= PLAIN_IDLE_S + TOUCH_EVERY_S
        if LONG:

            async def gone() -> object:
                return await engine.list() == []

            await until(gone, "the sandbox of a killed command", 60)
    finally:
        await engine.aclose()


@pytest.mark.promise("P64")
@pytest.mark.long(reason="`make test` has it without a daemon")
async def test_a_daemon_cleans_up_after_a_killed_command(scene):
    data_dir, environ, _ = scene
    process = await command(data_dir, environ, "agent", "run", "writer", "hang")
    run_id = await only_run(data_dir)
    process.kill()
    await process.communicate()
    async with aiohttp.ClientSession() as http, running(data_dir, environ=environ) as daemon:
        assert (await over(http, daemon.url, run_id))["status"] == "lost"

        async def gone() -> object:
            _, left = await ask(http, "GET", f"{daemon.url}/v1/sessions")
            return left == [] or left

        await until(gone, "sessions that are left")


async def test_a_resumed_workflow_of_a_killed_command_continues_in_the_same_sandbox(scene):
    data_dir, environ, script = scene
    given = json.dumps({"text": "hang"})
    process = await command(data_dir, environ, "workflow", "run", "flow", "--input", given)
    runs = RunDirectory(data_dir / "runs")
    await until(lambda: some(runs), "a run")
    [flow] = [row for row in await runs.list(None) if row.kind == "workflow"]
    await answered(data_dir, await step_of(data_dir, flow.id))
    process.kill()
    await process.communicate()
    script.hangs = False
    resumed = await command(data_dir, environ, "workflow", "resume", flow.id, "--json")
    out, err = await resumed.communicate()
    assert resumed.returncode == 0, err
    assert json.loads(out)["output"]["said"] == "write hang"
    listing = await command(data_dir, environ, "ls", "--json")
    out, _ = await listing.communicate()
    assert json.loads(out) == []


async def some(runs: RunDirectory) -> bool:
    return bool(await runs.list(None))


@pytest.mark.real_start
@pytest.mark.promise("P68")
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(
            signal.SIGTERM, 143, marks=pytest.mark.long(reason="`make test` has it for Ctrl-C")
        ),
    ],
)
async def test_an_interrupted_command_cancels_its_run_and_leaves_nothing(scene, number, status):
    data_dir, environ, _ = scene
    process = await command(data_dir, environ, "agent", "run", "writer", "hang")
    run_id = await only_run(data_dir)
    process.send_signal(number)
    async with asyncio.timeout(60):
        _, err = await process.communicate()
    assert process.returncode == status, err
    assert b"Traceback" not in err
    row = await RunDirectory(data_dir / "runs").get(run_id)
    assert row is not None
    assert row.status == "cancelled"
    listing = await command(data_dir, environ, "ls", "--json")
    out, _ = await listing.communicate()
    assert json.loads(out) == []


async def test_a_detached_run_is_followed_and_cancelled_from_the_command_line(scene):
    data_dir, environ, _ = scene
    async with running(data_dir, environ=environ) as daemon:
        begun = await through(daemon, environ, "agent", "run", "writer", "hang", "--detach")
        run_id = begun.strip()
        await answered(data_dir, run_id)
        told = json.loads(await through(daemon, environ, "agent", "cancel", run_id, "--json"))
        assert (told["status"], told["error"]["code"]) == ("cancelled", "CANCELLED")


async def through(daemon: DaemonProcess, environ, *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandkasten_server.cli", "--url", daemon.url, *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **environ},
    )  # fmt: skip
    out, _ = await process.communicate()
    return out.decode()


@pytest.mark.promise("P42")
@pytest.mark.long(reason="`make test` has a wheel without any extra")
async def test_a_daemon_without_the_agent_libraries_serves_everything_else(tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "jsonschema.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'jsonschema'\", name='jsonschema')\n"
    )
    path = os.pathsep.join([str(tmp_path / "none"), os.environ.get("PYTHONPATH", "")])
    environ = {"PYTHONPATH": path}
    async with aiohttp.ClientSession() as http, running(tmp_path / "data", environ=environ) as one:
        status, told = await ask(http, "POST", f"{one.url}/execute", {"agent_name": "x"})
        assert (status, told["code"]) == (422, "UNSUPPORTED_BY_BACKEND")
        assert "jsonschema" in told["message"]
        assert told["hint"] == install_command("agents")
        assert (await ask(http, "POST", f"{one.url}/v1/sessions", {}))[0] == 201
