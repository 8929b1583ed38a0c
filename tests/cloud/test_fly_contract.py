"""The contract of backends on Fly machines of our own server: the part that a provider can change,
and everything in `make test-long`. The rest is done by the runner, which is the same everywhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.hostwatch.snapshot import MARKER
from tests.ordinary_user import REPOSITORY
from tests.platform_choice import LONG

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S = 3_600 if LONG else 600
_SUITE = ["tests/conformance"] if LONG else ["tests/conformance/test_port.py"]
_LARGE = [] if LONG else ["-k", "not hundred and not thousand"]
pytestmark = [
    pytest.mark.promise("P117"),
    pytest.mark.root,
    pytest.mark.timeout(_TIMEOUT_S + 60),
]


def test_the_contract_holds_on_fly_machines(tmp_path: Path):
    shared = {name: os.environ[name] for name in (MARKER, "SANDKASTEN_LONG") if name in os.environ}
    words = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:xdist", *_LARGE]
    done = subprocess.run(
        [*words, "-o", f"cache_dir={tmp_path}", "--platform", "fly", *_SUITE],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **shared},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    assert " skipped" not in done.stdout
