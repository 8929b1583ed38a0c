"""The examples, run as a reader would run them, on real sandboxes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "hello.py": "1\n/tmp\nhello, sandbox\nexit status 2\n",
    "data_crunch.py": "54 MB, 1000000 rows, sum 499500000\n",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="must be root to see what root sees"),
]


def test_every_example_is_run():
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(SAYS)


@pytest.mark.parametrize("name", sorted(SAYS))
def test_an_example_prints_the_expected_output(name, monkeypatch, unisolated_only):
    monkeypatch.delenv("SANDKASTEN_BACKEND")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (SAYS[name], "", 0)
