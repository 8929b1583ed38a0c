"""Programs that use published clients, in the environment of those clients."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from tests import environments

if TYPE_CHECKING:
    from pathlib import Path


def run_client(program: Path, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a program with these arguments; return the object that it prints as JSON."""
    done = subprocess.run(
        [str(environments.compat()), "-I", str(program), *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values: dict[str, Any] = json.loads(done.stdout)
    return values
