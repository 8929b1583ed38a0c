"""The contract and the security suite on every further ground; what they find is written down.

Each suite runs in a process of its own, two at a time, because most of its cases wait. Every day
that is asked of the contract and of the attacks which another ground could change; all of them in
the full sizes (`make test-long`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.grounds import LONG, OFTEN
from tests.matrix import record
from tests.matrix.record import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.asked import Found

# What a suite may take at worst; everyday runs take a tenth of it.
TIMEOUT_S = 3_600 if LONG else 590
AT_ONCE = 2
CLOSED = "test_posture or test_network or test_kernel_surface"


@dataclass(frozen=True, slots=True)
class Run:
    ground: str
    suite: str
    every_day: str = ""
    """Which tests, as `-k` has it; empty for all."""

    @property
    def command(self) -> list[str]:
        if self.suite == "contract":
            words = ["tests/conformance", f"--backend={self.ground}"]
        else:
            words = ["tests/security", f"--ground={self.ground}"]
        return [*words, *(["-k", self.every_day] if self.every_day and not LONG else [])]


# The longest first, so that the last one does not run alone for long.
RUNS = [
    Run("gvisor", "contract", OFTEN),
    Run("gvisor", "security", f"{CLOSED} or test_archives"),
    Run("oci", "contract", OFTEN),
    Run("oci", "security", f"{CLOSED} or test_lifecycle"),
    Run("local/dev", "contract", f"({OFTEN}) or test_files"),
    Run("local/dev", "security", f"{CLOSED} or test_lifecycle or test_archives"),
    Run("local/debian", "contract", OFTEN),
    Run("local/debian", "security", f"{CLOSED} or test_processes"),
    Run("local/busybox", "contract"),
    Run("local/busybox", "security", f"{CLOSED} or test_archives or test_shell"),
]


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    text: str
    found: Found | None


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[Run, Future[Outcome]]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {run: pool.submit(_run, run) for run in RUNS}


@pytest.mark.root
@pytest.mark.timeout(TIMEOUT_S * 2)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.suite}-{run.ground}")
def test_a_suite_passes_on_a_further_ground(run, runs):
    outcome = runs[run].result()
    assert outcome.status == 0, outcome.text[-8000:]
    assert outcome.found is not None
    assert outcome.found["passed"] > 0
    # What is not asked has a marker with a reason; nothing is left out by a test itself.
    assert (outcome.found["failed"], outcome.found["skipped"]) == ([], [])
    record.put(run.ground, run.suite, outcome.found, every_day=run.every_day)


def _run(run: Run) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="pytest-of-matrix-", dir="/var/tmp") as scratch:
        told = Path(scratch) / "outcome.json"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "--tb=short", f"--outcome={told}"),
            *("-o", f"cache_dir={scratch}/cache", "-o", "tmp_path_retention_policy=none"),
            *(["-o", "timeout=3600"] if LONG else []),
            *run.command,
        ]
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
        found = json.loads(told.read_text()) if told.exists() else {}
    return Outcome(done.returncode, done.stdout, found.get(f"{run.suite} {run.ground}"))
