"""Both suites where the test process itself cannot be: in a container, and as an ordinary user.

The other platforms are parameters of the suites (`--platform all`).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.matrix.runs import FOLDERS, TIMEOUT_S, Outcome, as_user, inside
from tests.ordinary_user import OrdinaryUser
from tests.security.harness import poll

INSIDE = ("docker/inside", "docker/shared")
USER = ("user local", "user local/debian")
pytestmark = [pytest.mark.root, pytest.mark.timeout(TIMEOUT_S + 60)]


def _passed(outcome: Outcome) -> None:
    assert outcome.status == 0, outcome.text[-20_000:]
    assert outcome.found.keys() == FOLDERS.keys()
    for found in outcome.found.values():
        assert found["passed"] > 0
        # What does not run has a marker with a reason; no test skips itself.
        assert (found["failed"], found["skipped"]) == ([], [])


@pytest.mark.promise("P56")
@pytest.mark.parametrize("platform", INSIDE)
def test_both_suites_pass_inside_a_container(platform):
    with tempfile.TemporaryDirectory(prefix="pytest-of-matrix-", dir="/var/tmp") as scratch:
        _passed(inside(platform, Path(scratch)))


@pytest.mark.promise("P06")
@pytest.mark.parametrize("platform", USER)
def test_both_suites_pass_for_an_ordinary_user(platform):
    with OrdinaryUser() as user:
        _passed(as_user(platform, user))
        assert set(os.listdir(user.home)) <= {"cache", "images", "outcome.json"}
        poll("processes of the user", user.processes)
