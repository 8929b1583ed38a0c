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


@pytest.mark.long(reason="`make test` runs our own example agents")
@pytest.mark.root
def test_an_agent_writes_a_program_and_runs_it():
    python = environments.examples()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SANDKASTEN_")}
    with tempfile.TemporaryDirectory(prefix="pytest-of-examples-", dir="/var/tmp") as place:
        done = subprocess.run(
            [
                *("unshare", "--net", sys.executable, "-m", "tests.examples.alone"),
                f"{place}/data",
                *(str(python), str(HERE / "scripted_model.py"), str(EXAMPLE)),
            ],
            cwd=ROOT,
            env={
                **kept,
                "EXAMPLE_BACKEND": "local",
                # Our own client, in the environment of the example.
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
                "OPENAI_API_KEY": "none",
            },
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told == [
        "exit=0\ncwd=/workspace/src\n---\n",
        "wrote /workspace/src/fib.py",
        "exit=0\ncwd=/workspace/src\n---\ntwo\n/workspace/src\n0 1 1 2 3 5 8 13 21 34 ",
        "a, b = 0, 1\nwhile a < 50:\n    print(a, end=' ')\n    a, b = b, a + b\n",
    ]
