"""The commands and the program of the source documents.

The documents call the program `stn`; a script of that name runs ours.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.agents.agency import house
from tests.api.daemon_in_process import serving
from tests.client.http.served import served
from tests.models.server import Answer, Asked, Call, ScriptedModel
from tests.patience import PATIENCE_S
from tests.seeds.documents import ROOT, block

if TYPE_CHECKING:
    from pathlib import Path

CODER = """---
model: scripted
metadata: {name: coder}
sandbox: {mode: code, runtime: python}
---
You write code.
"""


def codes(asked: Asked) -> Answer:
    turns = [
        Call("sandbox_fs_write", {"path": "hello.py", "contents": "print('Hello, World!')"}),
        Call("sandbox_exec", {"cmd": ["python3", "hello.py"]}),
    ]
    if asked.turn < len(turns):
        return Answer(calls=[turns[asked.turn]])
    return Answer(str(asked.last["stdout"]))


async def test_the_request_of_curl_runs_an_agent(tmp_path):
    [command] = re.findall(r"^curl .*?'\n", block("001-13").text, re.MULTILINE | re.DOTALL)
    async with (
        house(
            tmp_path, files={"agents/coder.prompt": CODER}, script=codes, backend="unisolated"
        ) as one,
        serving(one.engine, agents=one.service) as daemon,
    ):
        script = command.replace("localhost:8587", f"localhost:{daemon.port}")
        curl = await asyncio.create_subprocess_exec(
            *("bash", "-c", script), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        said, _ = await asyncio.wait_for(curl.communicate(), PATIENCE_S)
        accepted = json.loads(said)
        row = await one.ended(await one.service.run(accepted["run_id"], "default"))
        assert (row.status, row.output) == ("completed", "Hello, World!\n")
        assert await one.sandboxes() == []


@pytest.mark.slow
async def test_the_commands_of_the_design_serve_and_run_an_agent(tmp_path):
    serve, run = re.findall(r"^[^#\n].*", block("003-19").text, re.MULTILINE)
    variable, _, command = serve.partition(" ")
    assert command == "stn serve"
    (tmp_path / "bin").mkdir()
    stn = tmp_path / "bin" / "stn"
    stn.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.unisolated "$@"\n')
    stn.chmod(0o755)
    (tmp_path / "agents").mkdir()
    prompt = block("002-22").text
    (tmp_path / "agents" / "developer.prompt").write_text(prompt)
    async with ScriptedModel(codes) as model:
        environ = {
            variable.partition("=")[0]: variable.partition("=")[2],
            "SANDKASTEN_AGENTS_DIRS": str(tmp_path / "agents"),
            "SANDKASTEN_MODELS_BASE_URL": model.base_url,
            "SANDKASTEN_MODELS_API_KEY": "sk-test",
            "SANDKASTEN_IMAGES_ALIASES": "python:3.11-slim=host",
        }
        said = await asyncio.to_thread(_served_and_run, tmp_path, run, environ)
    assert said == (0, "Hello, World!\n")


def _served_and_run(place: Path, command: str, environ: dict[str, str]) -> tuple[int, str]:
    with served(place / "data", **environ) as daemon:
        done = subprocess.run(
            ["bash", "-c", command],
            env={
                **os.environ,
                **environ,
                "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "SANDKASTEN_URL": daemon.url,
                "SANDKASTEN_API_KEY": daemon.key,
            },
            cwd=place,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def test_the_example_is_the_program_of_the_plan():
    """tests/examples runs it, with a scripted model, against a daemon on port 8080."""
    example = ast.parse((ROOT / "examples/openai_agents/coding_assistant.py").read_text())
    plan = ast.parse(block("004-10").text)
    documented, *rest = example.body
    assert isinstance(documented, ast.Expr)
    assert [ast.dump(one) for one in rest[:-1]] == [ast.dump(one) for one in plan.body]
    assert isinstance(rest[-1], ast.If)
