"""Scenarios of `dashboard/tests`: they run in Node, which drives Chromium on a daemon of ours."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tests import environments
from tests.patience import FAR_TOO_LATE_S
from tests.sdks.typescript import variables

if TYPE_CHECKING:
    from tests.client.http.served import Served

PICTURES = "DASHBOARD_PICTURES"


def played(scenario: str, daemon: Served, **more: str) -> str:
    """Run a scenario and return its output. It keeps pictures in DASHBOARD_PICTURES, if set."""
    pictures = {PICTURES: os.environ[PICTURES]} if PICTURES in os.environ else {}
    done = subprocess.run(
        [environments.node(), f"tests/{scenario}.mjs"],
        cwd=environments.dashboard(),
        env={**variables(daemon), "HOME": str(daemon.data_dir), **pictures, **more},
        capture_output=True,
        text=True,
        timeout=9 * FAR_TOO_LATE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
