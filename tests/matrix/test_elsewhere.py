"""Both suites where the test process itself cannot be: in a container, and as an ordinary user.

The other platforms are parameters of the suites (`--platform all`).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.matrix.runs import FOLDERS, TIMEOUT_S, Outcome, Run, as_user, inside
from tests.ordinary_user import OrdinaryUser
from tests.security.harness import poll

INSIDE = ("docker/inside", "docker/shared")
USER = ("user local", "user local/debian")
pytestmark = [pytest.mark.root, pytest.mark.timeout(TIMEOUT_S + 60)]


def _runs(*platforms: str) -> list[Run]:
    return [Run(suite, platform) for platform in platforms for suite in FOLDERS]


def _passed(outcome: Outcome) -> None:
    assert outcome.status == 0, outcome.text[-20_000:]
    assert outcome.found is not None
    assert outcome.found["passed"] > 0
    # What does not run has a marker with a reason; no test skips itself.
    assert (outcome.found["failed"], outcome.found["skipped"]) == ([], [])


@pytest.mark.promise("P56")
@pytest.mark.parametrize("run", _runs(*INSIDE), ids=lambda run: f"{run.platform}-{run.suite}")
def test_suite_passes_inside_a_container(run):
    with tempfile.TemporaryDirectory(prefix="pytest-of-matrix-", dir="/var/tmp") as scratch:
        _passed(inside(run, Path(scratch)))


@pytest.mark.promise("P06")
@pytest.mark.parametrize("run", _runs(*USER), ids=lambda run: f"{run.platform}-{run.suite}")
def test_suite_passes_for_an_ordinary_user(run):
    with OrdinaryUser() as user:
        _passed(as_user(run, user))
        assert set(os.listdir(user.home)) <= {"cache", "images", "outcome.json"}
        poll("processes of the user", user.processes)
