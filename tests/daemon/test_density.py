"""A thousand idle sandboxes on one daemon: what they take, and what requests cost beside them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks import density
from tests.environments import ROOT

pytestmark = pytest.mark.promise("P97")


def found(size, **more):
    return density.Found(
        size,
        sandbox_mib=1.5,
        ms={"exec": 2.2},
        one_ms={"exec": 2.0},
        ready_ms=500.0,
        one_ready_ms=500.0,
        daemon_cpu=0.2,
        **more,
    )


def test_the_goals_are_judged_by_the_largest_size():
    assert [ok for _, ok in density.verdicts([found(10), found(1000)])] == [True] * 4
    heavy = found(1000)
    heavy.sandbox_mib, heavy.ms, heavy.ready_ms, heavy.daemon_cpu = 2.0, {"exec": 3}, 1501.0, 1.0
    assert [ok for _, ok in density.verdicts([found(10), heavy])] == [False] * 4


def test_the_table_has_a_column_for_each_size():
    rows = density.table([found(10), found(1000)], [30.0, 40.0]).splitlines()
    assert rows[0] == "| sandboxes | 10 | 1,000 |"
    assert "| exec (ms) | 2.2 (1.10 ×) | 2.2 (1.10 ×) |" in rows
    assert rows[-1] == "Created and destroyed per second, held for a minute: 30.0 to 40.0."


@pytest.mark.root
@pytest.mark.timeout(1200)
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no cgroups and one id")
@pytest.mark.long(reason="it takes minutes; `make test` counts operations in test_growth.py")
def test_a_thousand_sandboxes_keep_the_goals():
    words = ("--sizes", "1", "10", "1000", "--check")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.density", *words],
        capture_output=True,
        text=True,
        timeout=1100,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
