"""One suite on one ground, in a process of its own; on docker, maybe in a container of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.engines.inside import OVERSIGHT, Inside
from tests.grounds import GROUNDS, LONG, engine_of
from tests.hostwatch.snapshot import MARKER
from tests.matrix import record
from tests.matrix.record import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pytest

    from tests.asked import Found

# What a suite may take at worst; everyday runs take a twentieth of it.
TIMEOUT_S = 3_600 if LONG else 2_400
# Where the volume of all sessions is seen in our own container; no setting says so.
SHARED_AT = "/sandboxes"


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


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    text: str
    found: Found | None


def asked_of(items: Iterable[pytest.Item]) -> list[Run]:
    """The runs that a session's tests will ask for, in their order; others are not begun."""
    found = (getattr(item, "callspec", None) for item in items)
    return [one.params["run"] for one in found if one is not None and "run" in one.params]


def passes(run: Run, outcome: Outcome) -> None:
    """Fails with what the suite said, or writes down what it found."""
    assert outcome.status == 0, outcome.text[-8000:]
    assert outcome.found is not None
    assert outcome.found["passed"] > 0
    # What is not asked has a marker with a reason; nothing is left out by a test itself.
    assert (outcome.found["failed"], outcome.found["skipped"]) == ([], [])
    record.put(run.ground, run.suite, outcome.found, every_day=run.every_day)


def ran(run: Run) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="pytest-of-matrix-", dir="/var/tmp") as scratch:
        told = Path(scratch) / "outcome.json"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "--tb=short", f"--outcome={told}"),
            *("-o", f"cache_dir={scratch}/cache", "-o", "tmp_path_retention_policy=none"),
            *(["-o", "timeout=3600"] if LONG else []),
            *run.command,
        ]
        done = _inside(run, command, scratch) if GROUNDS[run.ground].inside else _here(command)
        found = json.loads(told.read_text()) if told.exists() else {}
    return Outcome(done.returncode, done.stdout, found.get(f"{run.suite} {run.ground}"))


def _here(
    command: list[str], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )


def _inside(run: Run, command: list[str], scratch: str) -> subprocess.CompletedProcess[str]:
    """In a container that has the engine's socket, and the volume of all sessions or nothing."""
    ground = GROUNDS[run.ground]
    engine = engine_of(ground, outside=True)
    volumes = {scratch: scratch}
    if ground.where == "shared":
        volumes[SHARED_AT] = "station-sandboxes"
    # With none, docker takes even the loopback of IPv6 away, which the suite asks for.
    there = Inside(engine, volumes=volumes, options=OVERSIGHT, network="host")
    known = {name: os.environ[name] for name in (MARKER, "SANDKASTEN_LONG") if name in os.environ}
    words = there.words(*command, env=known)
    return _here(words, {**os.environ, **engine.environment})
