"""`make demo-agents` as a reader runs it; every step checks its result."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.agents import scripted_model
from sandkasten.model.runs.run_values import RunEvent
from tests.agents.agency import house

pytestmark = pytest.mark.promise("P41")

ROOT = Path(__file__).parent.parent.parent


AGENTS = ROOT / "examples" / "agents"
LOG = "09:01 INFO started\n09:04 ERROR disk is full\n09:05 ERROR disk is full\n09:09 ERROR no route"
MODULE = "def mean(values):\n    return sum(values) / len(values)\n"


async def test_the_example_agents_and_their_workflow_complete(tmp_path, monkeypatch):
    # The model imports its module from its own folder, as a program there does.
    monkeypatch.setitem(sys.modules, "scripted_model", scripted_model)
    model = importlib.import_module("examples.agents.demo_model")
    files = {
        str(path.relative_to(AGENTS)): path.read_text()
        for folder in ("agents", "workflows")
        for path in (AGENTS / folder).iterdir()
    }
    async with house(tmp_path, files=files, script=model.answer, backend="local") as one:
        counted = await one.agent("log-analyzer", "Analyze it", variables={"log_data": LOG})
        assert (counted.status, counted.output["error_count"]) == ("completed", 3), counted
        made = await one.agent("python-developer", "print the primes below 20")
        assert made.output == "primes.py prints [2, 3, 5, 7, 11, 13, 17, 19]", made
        fixed = await one.flow("code-review-and-fix", {"code": MODULE})
        taken = [
            event.data["next"]
            async for event in one.service.events(fixed.id, fixed.tenant, follow=True)
            if isinstance(event, RunEvent) and event.type == "switch.taken"
        ]
        # The tests failed once, and the second repair found all files of the first.
        assert (fixed.status, taken) == ("completed", ["fix", "done"])
        assert await one.sandboxes() == []


@pytest.mark.root
@pytest.mark.long(reason="it takes 50 MB of JSON and the command line; `make test` runs the agents")
def test_the_example_agents_work_and_leave_nothing(tmp_path):
    done = subprocess.run(
        [ROOT / "scripts" / "demo-agents.sh"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "primes.py prints [2, 3, 5, 7, 11, 13, 17, 19]" in done.stdout
    # The tests failed once, and the second repair found all files of the first.
    taken = [line for line in done.stderr.splitlines() if "switch.taken" in line]
    assert [line.split("next=")[1] for line in taken] == ["fix", "done"], done.stderr
    assert done.stdout.rstrip().endswith("no sandbox is left")
    assert list(tmp_path.iterdir()) == []
