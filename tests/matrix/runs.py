"""Both suites on one platform, in a process of their own; on docker in a container."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests import imagekit
from tests.engines.inside import OVERSIGHT, Inside
from tests.hostwatch.snapshot import MARKER
from tests.ordinary_user import REPOSITORY, staged
from tests.platform_choice import ARCHIVES, GROUNDS, LONG, engine_of, part

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.ordinary_user import OrdinaryUser
    from tests.platform_choice import Suite
    from tests.platform_markers import Found

OUTCOMES = REPOSITORY / "build" / "platforms"
FOLDERS: dict[Suite, str] = {"contract": "tests/conformance", "security": "tests/security"}
# The most that a suite may take; with the sizes of `make test` it takes a twentieth of it.
TIMEOUT_S = 3_600 if LONG else 1_200
# Where the volume of all sessions is mounted in the container; no setting names it.
SHARED_AT = "/sandboxes"


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    text: str
    found: dict[Suite, Found]


def as_user(platform: str, user: OrdinaryUser) -> Outcome:
    """Run as an ordinary user: `user local` is `local`."""
    target = user.home / "outcome.json"
    env = _shared_environment()
    if _ground(platform) != "local":
        env[ARCHIVES] = staged(str(imagekit.debian_tar().parent))
    done = user.pytest(*_arguments(platform, target), env=env, timeout_s=TIMEOUT_S)
    return _outcome(platform, done, target)


def inside(platform: str, scratch: Path) -> Outcome:
    """Run in a container with the engine's socket and, if shared, the volume of all sessions."""
    ground, target = GROUNDS[platform], scratch / "outcome.json"
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
        *words, *_arguments(platform, target), env=_shared_environment(), timeout_s=TIMEOUT_S
    )
    return _outcome(platform, done, target)


def _ground(platform: str) -> str:
    return platform.removeprefix("user ")


def _arguments(platform: str, target: Path) -> list[str]:
    return [
        *(f"--platform={_ground(platform)}", f"--part={platform}", f"--outcome={target}"),
        *(["-o", "timeout=3600"] if LONG else []),
        *(
            file
            for suite, folder in FOLDERS.items()
            for file in part(suite, platform).files_in(folder)
        ),
    ]


def _shared_environment() -> dict[str, str]:
    return {
        name: os.environ[name] for name in (MARKER, "TEST_SANDKASTEN_LONG") if name in os.environ
    }


def _outcome(platform: str, done: subprocess.CompletedProcess[str], target: Path) -> Outcome:
    """Return what came of a run, and write it to `build/platforms`."""
    told = json.loads(target.read_text()) if target.exists() else {}
    found: dict[Suite, Found] = {
        suite: told[f"{suite} {_ground(platform)}"]
        for suite in FOLDERS
        if f"{suite} {_ground(platform)}" in told
    }
    OUTCOMES.mkdir(parents=True, exist_ok=True)
    file = OUTCOMES / f"{platform}.json".replace("/", "-")
    file.write_text(json.dumps({f"{suite} {platform}": one for suite, one in found.items()}))
    return Outcome(done.returncode, f"{done.stdout}{done.stderr or ''}", found)
