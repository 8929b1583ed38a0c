"""What each variable of the source documents does to an engine that is started with it.

Isolation is not observed here, so most engines have none.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import SandkastenError
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.assembly.settings.resolver import load
from tests import imagekit
from tests.agents.agency import house
from tests.agents.desk import Desk, opened_with
from tests.models.server import Answer, Asked, Call
from tests.patience import PATIENCE_S
from tests.seeds.documents import run_as
from tests.seeds.test_settings_blocks import variables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

FLOOD = "import sys; sys.stdout.write('x' * 99); sys.stderr.write('x' * 99)"
AGENT = """---
model: scripted
metadata: {name: coder}
sandbox: {mode: %s, runtime: bash}
---
You write code.
"""


@asynccontextmanager
async def started(place: Path, backend: str = "unisolated", **environ: str) -> AsyncIterator[Desk]:
    """Open an engine as the environment says; STATION_SANDBOX_DIR is where it has its files."""
    given = {
        "HOME": str(place),
        "SANDKASTEN_BACKEND": backend,
        "STATION_SANDBOX_DIR": str(place / "boxes"),
        **environ,
    }
    async with opened_with(load({}, given, place)) as one:
        yield one


async def code_of_a_run(place: Path, **environ: str) -> Any:
    """Return the code of the error, and the rule that it names; None if the run succeeded."""
    async with started(place, **environ) as desk:
        answer = await desk.call("run", code="print(1)")
    return (answer["code"], answer["details"]["rule"]) if "code" in answer else None


async def use_of_an_image(place: Path, **environ: str) -> Any:
    """Return the name of an image that is stored, or the code of the error."""
    small = ("node:20-slim", imagekit.busybox_tar())
    await asyncio.to_thread(imagekit.store_with, place / "boxes" / "images", small)
    async with started(place, "local", **environ) as desk:
        answer = await desk.call("open", image="node:20-slim")
    return answer.get("code", answer.get("image"))


async def timeout_of_a_run(place: Path, **environ: str) -> Any:
    async with started(place, **environ) as desk:
        ran = await desk.call("run", runtime="bash", code="sleep 60")
    return ran["timed_out"], ran["limits"]["timeout_seconds"]


async def lengths_of_a_flood(place: Path, **environ: str) -> Any:
    async with started(place, **environ) as desk:
        ran = await desk.call("run", code=FLOOD)
    return ran["stdout"].count("x"), ran["stderr"].count("x")


async def names_of_artifacts(place: Path, **environ: str) -> Any:
    code = "open('small', 'w').write('1234'); open('large', 'w').write('1' * 99)"
    async with started(place, **environ) as desk:
        ran = await desk.call("run", code=code, artifacts=["small", "large"])
    return [one["path"] for one in ran["artifacts"] if "content_base64" in one]


async def status_of_an_agent(place: Path, **environ: str) -> Any:
    """Return the status of an agent in code mode and of one in compute mode."""
    files = {f"agents/{mode}.prompt": AGENT % mode for mode in ("code", "compute")}
    files = {name: text.replace("coder", name[7:-7]) for name, text in files.items()}

    def plays(asked: Asked) -> Answer:
        if asked.turn:
            return Answer("done")
        names = [one["function"]["name"] for one in asked.body["tools"]]
        computes = names == ["sandbox_run"]
        name, given = ("run", {"code": "true"}) if computes else ("exec", {"command": "true"})
        return Answer(calls=[Call(f"sandbox_{name}", given)])

    given: dict[str, Any] = {"backend": "unisolated", **environ}
    async with house(place, files=files, script=plays, **given) as one:
        return [await _status(one, mode) for mode in ("code", "compute")]


async def _status(one: Any, agent: str) -> str:
    try:
        row = await one.agent(agent, "do it")
    except SandkastenError as error:
        return str(error.details["rule"])
    return str(row.status)


async def directory_of_a_sandbox(place: Path, **environ: str) -> Any:
    async with started(place, "local", **environ) as desk:
        the_id = (await desk.call("open"))["sandbox_id"]
        return await asyncio.to_thread(_folders_with, place, the_id)


def _folders_with(place: Path, part: str) -> list[str]:
    return sorted({one.relative_to(place).parts[0] for one in place.rglob(f"*{part}*")})


async def network_of_a_session(place: Path, **environ: str) -> Any:
    async with started(place, "local", **environ, SANDKASTEN_POLICY_ALLOW_NETWORK="true") as desk:
        info = await desk.engine.create(CreateRequest())
        return info.network


async def request_of_the_engine(place: Path, **environ: str) -> Any:
    """Return what a program that listens there is asked first."""
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    path = environ["DOCKER_HOST"].removeprefix("unix://")
    async with (
        await asyncio.start_unix_server(refuse, path),
        started(place, "docker", **environ) as desk,
    ):
        assert (await desk.call("open"))["code"] == "BACKEND_UNAVAILABLE"
    return asked[0].split()[0]


async def message_at_the_start(place: Path, **environ: str) -> Any:
    """Return whether a daemon refuses to start for lack of the address of its engine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SANDKASTEN_")}
    kept.pop("DOCKER_HOST", None)
    serve = (*(sys.executable, "-m", "sandkasten_server.cli", "serve"), "--listen", "127.0.0.1:0")
    done = await asyncio.to_thread(
        subprocess.run,
        serve,
        env={
            **kept,
            "HOME": str(place),
            "SANDKASTEN_BACKEND": "docker",
            "STATION_SANDBOX_DIR": str(place / "boxes"),
            **environ,
        },
        cwd=place,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, "remote" in done.stderr


async def life_of_a_sandbox(place: Path, **environ: str) -> Any:
    """Wait until it is gone; it was not destroyed, and its command has ended."""
    async with started(place, "local", **environ) as desk:
        the_id = (await desk.call("open"))["sandbox_id"]
        deadline = time.monotonic() + PATIENCE_S
        while (await desk.engine.get(the_id)).status == "running":
            assert time.monotonic() < deadline, environ
            await asyncio.sleep(0.05)
        return (await desk.call("exec", sandbox_id=the_id, command="true"))["code"]


ROWS: list[tuple[str, str, Any, Any]] = [
    ("STATION_SANDBOX_ENABLED", "true", code_of_a_run, None),
    ("STATION_SANDBOX_ENABLED", "false", code_of_a_run, ("FORBIDDEN", "policy.enabled")),
    ("STATION_SANDBOX_CODE_MODE_ENABLED", "true", status_of_an_agent, ["completed"] * 2),
    (
        "STATION_SANDBOX_CODE_MODE_ENABLED",
        "false",
        status_of_an_agent,
        ["policy.code_mode", "completed"],
    ),
    ("STATION_SANDBOX_ENGINE_MODE", "remote", message_at_the_start, (125, True)),
    ("STATION_SANDBOX_ALLOWED_IMAGES", "python:3.11-slim", use_of_an_image, "FORBIDDEN"),
    ("STATION_SANDBOX_ALLOWED_IMAGES", "node:20-slim", use_of_an_image, "node:20-slim"),
    ("STATION_SANDBOX_DEFAULT_TIMEOUT_SECONDS", "1", timeout_of_a_run, (True, 1)),
    ("STATION_SANDBOX_MAX_STDOUT_BYTES", "10", lengths_of_a_flood, (10, 99)),
    ("STATION_SANDBOX_MAX_STDERR_BYTES", "10", lengths_of_a_flood, (99, 10)),
    ("STATION_SANDBOX_MAX_ARTIFACT_BYTES", "10", names_of_artifacts, ["small"]),
    ("STATION_SANDBOX_ALLOW_NETWORK_DEFAULT", "false", network_of_a_session, "none"),
    ("STATION_SANDBOX_ALLOW_NETWORK_DEFAULT", "true", network_of_a_session, "full"),
    ("STATION_SANDBOX_DIR", "{place}/elsewhere", directory_of_a_sandbox, ["elsewhere"]),
    ("DOCKER_HOST", "unix://{place}/e.sock", request_of_the_engine, b"GET"),
    ("SANDBOX_SESSION_IDLE_TIMEOUT", "1s", life_of_a_sandbox, "SESSION_EXPIRED"),
    ("SANDBOX_SESSION_MAX_LIFETIME", "1s", life_of_a_sandbox, "SESSION_EXPIRED"),
]


@pytest.mark.parametrize(
    ("name", "value", "observe", "expected"), ROWS, ids=[f"{one[0]}={one[1]}" for one in ROWS]
)
async def test_a_variable_changes_what_an_engine_does(tmp_path, name, value, observe, expected):
    assert await observe(tmp_path, **{name: value.format(place=tmp_path)}) == expected


def test_every_variable_of_the_documents_is_observed():
    named = {name for one in run_as("environment") for given in variables(one) for name in given}
    assert named <= {name for name, *_ in ROWS}
