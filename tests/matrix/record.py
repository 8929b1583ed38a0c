"""build/matrix.json: what the contract and the security suite found, by ground and suite.

Written cell by cell as runs end, so that runs of single suites add up; scripts/matrix.py makes a
page of it. A run is known by the marker that hostwatch gives it.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.hostwatch.snapshot import MARKER

if TYPE_CHECKING:
    from tests.asked import Found

REPOSITORY = Path(__file__).resolve().parents[2]
FILE = REPOSITORY / "build" / "matrix.json"


def put(ground: str, suite: str, found: Found, *, every_day: str) -> None:
    """`every_day`: what of the suite is run there without SANDKASTEN_LONG; empty for all of it."""
    FILE.parent.mkdir(exist_ok=True)
    with open(FILE.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cells = read()
        cells[f"{suite} {ground}"] = {
            "ground": ground,
            "suite": suite,
            "passed": found["passed"],
            "failed": found["failed"],
            "not_asked": found["not_asked"],
            "every_day": every_day,
            "seconds": found["seconds"],
            "run": os.environ[MARKER],
        }
        making = FILE.with_suffix(".new")
        making.write_text(json.dumps(cells, indent=1, sort_keys=True) + "\n")
        making.rename(FILE)


def read() -> dict[str, dict[str, Any]]:
    try:
        found: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    except FileNotFoundError:
        return {}
    return found
