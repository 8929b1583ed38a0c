"""The example with the OpenAI Agents SDK, run as written on a real sandbox."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import environments

pytestmark = pytest.mark.promise("P41")

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
EXAMPLE = ROOT / "examples" / "openai_agents" / "coding_assistant.py"


TOLD = [
    "exit=0\ncwd=/workspace/src\n---\n",
    "wrote /workspace/src/fib.py",
    "exit=0\ncwd=/workspace/src\n---\ntwo\n/workspace/src\n0 1 1 2 3 5 8 13 21 34 ",
    "a, b = 0, 1\nwhile a < 50:\n    print(a, end=' ')\n    a, b = b, a + b\n",
]


@pytest.mark.long(reason="it installs the SDK; `make test` calls the tools without it")
@pytest.mark.root
def test_an_agent_writes_a_program_and_runs_it():
    assert run(environments.examples(), "scripted_model.py") == TOLD


@pytest.mark.root
def test_the_program_and_its_tools_work_on_a_daemon():
    assert run(Path(sys.executable), "sdk_stand_in.py") == TOLD


def run(python: Path, driver: str) -> list[str]:
    """Return what the tools of the example answered, on a daemon with the address it names."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SANDKASTEN_")}
    with tempfile.TemporaryDirectory(prefix="pytest-of-examples-", dir="/var/tmp") as place:
        done = subprocess.run(
            [
                *("unshare", "--net", sys.executable, "-m", "tests.examples.alone"),
                f"{place}/data",
                *(str(python), str(HERE / driver), str(EXAMPLE)),
            ],
            cwd=ROOT,
            env={
                **kept,
                "EXAMPLE_BACKEND": "local",
                # Our own client, in the environment of the example.
                "PYTHONPATH": str(ROOT),
                "OPENAI_API_KEY": "none",
            },
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    told: list[str] = json.loads(done.stdout)
    return told
