"""A small run of the benchmark with the contestants that need no other environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report, results, rows
from benchmarks.peers.contestants import BARE, BWRAP, CLI, COLD, CONTESTANTS, HTTP, WARM
from tests.repo import tree

_ELSEWHERE = [one.name for one in CONTESTANTS if one.environment != "ours"]


def _run(place: Path, *words: str) -> None:
    environ = {**os.environ, "TMPDIR": str(place / "tmp")}
    subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "--quick", "--into", str(place / "out"), *words],
        cwd=tree.ROOT,
        env=environ,
        check=True,
    )


@pytest.mark.long("it starts eight contestants and a daemon, each several times")
@pytest.mark.timeout(600)
def test_a_run_measures_what_came_and_names_what_did_not(tmp_path):
    (tmp_path / "tmp").mkdir()
    without = ("--without", "docker", "runc", "runsc", *_ELSEWHERE)
    _run(tmp_path, "--only", "sessions", "oneshots", *without)
    found = results.loaded(tmp_path / "out" / report.RESULTS)
    assert {name for name, one in found.entrants.items() if not one.absent} == {
        *(WARM, COLD, HTTP, CLI, "sandkasten CLI, daemon", BARE, BWRAP)
    }
    assert set(found.measured[rows.EXEC]) == {WARM, COLD, HTTP, BARE, BWRAP}
    assert CLI in found.measured[rows.COMMAND_LINE]
    assert all(one.failed == 0 for peers in found.measured.values() for one in peers.values())
    # The next run keeps what it does not measure again.
    _run(tmp_path, "--only", "rate", *without)
    again = results.loaded(tmp_path / "out" / report.RESULTS)
    assert again.parts["sessions"] == found.parts["sessions"]
    assert again.measured[rows.RATE][WARM].p50
    assert (tmp_path / "out" / "rate.svg").is_file()
    assert list((tmp_path / "tmp").iterdir()) == []
    left = [
        path
        for path in Path("/proc").glob("[0-9]*/environ")
        if str(tmp_path).encode() in _content(path)
    ]
    assert left == []


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
