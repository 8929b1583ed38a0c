"""Both suites on every way to have a Docker Engine; what they find is written down.

The contract is asked whole everywhere. The attacks are, every day, asked nearly whole where
workspaces are volumes, and elsewhere as far as another way to files or in could change their end;
in full sizes (`make test-long`) all of them.

A lane of its own in `make test`, because its time is mostly the engine's. All share one engine on
this machine, and one that is far away as far as it can tell. See `tests.grounds.Cells` for where
their sandboxes come from.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.engines import lent
from tests.grounds import GROUNDS, engine_of
from tests.matrix import page
from tests.matrix.runs import TIMEOUT_S, Outcome, Run, asked_of, passes, ran

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.promise("P56")

# Most cases wait, for a deadline or for the engine.
AT_ONCE = 2
WHERE = ("volume", "inside", "shared", "remote", "bind")
# The longest first, so that the last one does not run alone for long.
# What the way to the files and the way in could change; the container is the same everywhere.
WAYS = "test_posture or test_network or test_lifecycle"
RUNS = [
    # What a shell does with names is the runner's own work, and the same program everywhere.
    Run("docker/volume", "security", "not test_shell_shadowing"),
    *(Run(f"docker/{where}", "security", WAYS) for where in WHERE if where != "volume"),
    *(Run(f"docker/{where}", "contract") for where in WHERE),
    Run("docker/busybox", "contract", "test_port or test_commands"),
    Run("docker/busybox", "security", "test_posture"),
]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[Run, Future[Outcome]]]:
    asked = [run for run in RUNS if run in asked_of(request.node.session.items)]
    for run in asked:
        engine_of(GROUNDS[run.ground], outside=True)
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield {run: pool.submit(ran, run) for run in asked}
    finally:
        # Somebody who interrupts does not wait for what has not begun.
        pool.shutdown(cancel_futures=True)
        lent.close()


@pytest.mark.root
@pytest.mark.timeout(TIMEOUT_S * 2)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.suite}-{run.ground}")
def test_a_suite_passes_on_an_engine(run, runs):
    passes(run, runs[run].result())


@pytest.mark.root
def test_the_page_of_platforms_has_the_results_of_the_engines():
    assert page.wrong() == {}, "run scripts/matrix.py"
