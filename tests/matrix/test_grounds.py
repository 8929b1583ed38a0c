"""The contract and the security suite on every further ground; what they find is written down.

Each suite runs in a process of its own, two at a time, because most of its cases wait. Every day
that is asked of the contract and of the attacks which another ground could change; all of them in
the full sizes (`make test-long`).
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.grounds import OFTEN
from tests.matrix.runs import TIMEOUT_S, Outcome, Run, asked_of, passes, ran

if TYPE_CHECKING:
    from collections.abc import Iterator

AT_ONCE = 2
CLOSED = "test_posture or test_network or test_kernel_surface"

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


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[Run, Future[Outcome]]]:
    asked = asked_of(request.node.session.items)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {run: pool.submit(ran, run) for run in RUNS if run in asked}


@pytest.mark.root
@pytest.mark.timeout(TIMEOUT_S * 2)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.suite}-{run.ground}")
def test_a_suite_passes_on_a_further_platform(run, runs):
    passes(run, runs[run].result())
