"""One suite on one platform, in its own process; on docker optionally in its own container."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests import imagekit
from tests.engines.inside import OVERSIGHT, Inside
from tests.grounds import ARCHIVES, GROUNDS, LONG, engine_of, part
from tests.hostwatch.snapshot import MARKER
from tests.ordinary_user import REPOSITORY, staged

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.asked import Found
    from tests.grounds import Suite
    from tests.ordinary_user import OrdinaryUser

OUTCOMES = REPOSITORY / "build" / "platforms"
FOLDERS: dict[Suite, str] = {"contract": "tests/conformance", "security": "tests/security"}
# The most that a suite may take; with the sizes of `make test` it takes a twentieth of it.
TIMEOUT_S = 3_600 if LONG else 1_200
# Where the volume of all sessions is mounted in the container; no setting names it.
SHARED_AT = "/sandboxes"


@dataclass(frozen=True, slots=True)
class Run:
    suite: Suite
    platform: str
    """A row of the page: `user local` is `local` by an ordinary user."""

    @property
    def ground(self) -> str:
        return self.platform.removeprefix("user ")


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    text: str
    found: Found | None


def as_user(run: Run, user: OrdinaryUser) -> Outcome:
    target = user.home / "outcome.json"
    env = _shared_environment()
    if run.ground != "local":
        env[ARCHIVES] = staged(str(imagekit.debian_tar().parent))
    done = user.pytest(*_arguments(run, target), env=env, timeout_s=TIMEOUT_S)
    return _outcome(run, done, target)


def inside(run: Run, scratch: Path) -> Outcome:
    """Run in a container with the engine's socket and, if shared, the volume of all sessions."""
    ground, target = GROUNDS[run.ground], scratch / "outcome.json"
    engine = engine_of(ground, outside=True)
    volumes = {str(scratch): str(scratch)}
    if ground.where == "shared":
        volumes[SHARED_AT] = "station-sandboxes"
    # Without a network docker removes even the loopback of IPv6, which the suite needs.
    container = Inside(engine, volumes=volumes, options=OVERSIGHT, network="host")
    words = (
        *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:xdist"),
        *("-o", f"cache_dir={scratch}/cache", "-o", "tmp_path_retention_policy=none"),
    )
    done = container.run(
        *words, *_arguments(run, target), env=_shared_environment(), timeout_s=TIMEOUT_S
    )
    return _outcome(run, done, target)


def _arguments(run: Run, target: Path) -> list[str]:
    return [
        *(f"--platform={run.ground}", f"--outcome={target}"),
        *(["-o", "timeout=3600"] if LONG else []),
        *part(run.suite, run.platform).arguments(FOLDERS[run.suite]),
    ]


def _shared_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in (MARKER, "SANDKASTEN_LONG") if name in os.environ}


def _outcome(run: Run, done: subprocess.CompletedProcess[str], target: Path) -> Outcome:
    """Return what came of a run, and write it to `build/platforms`."""
    outcome = json.loads(target.read_text()) if target.exists() else {}
    found = outcome.get(f"{run.suite} {run.ground}")
    if found is not None:
        OUTCOMES.mkdir(parents=True, exist_ok=True)
        file = OUTCOMES / f"{run.suite} {run.platform}.json".replace("/", "-")
        file.write_text(json.dumps({f"{run.suite} {run.platform}": found}))
    return Outcome(done.returncode, f"{done.stdout}{done.stderr or ''}", found)
