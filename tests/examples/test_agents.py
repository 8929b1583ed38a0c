"""`make demo-agents` as a reader runs it; every step checks its result."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.promise("P41")

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.root
@pytest.mark.long(reason="`make test` runs the agents of the README and of the documents")
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
