"""The TypeScript client: its tests run in Node, on a daemon of ours."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests import environments
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.client.http.served import Served


def variables(daemon: Served) -> dict[str, str]:
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "SANDKASTEN_URL": daemon.url,
        "SANDKASTEN_API_KEY": daemon.key,
        "SANDKASTEN_SOCKET": daemon.socket,
    }


def node(*words: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Node and return what it printed; a failure has all of it."""
    done = subprocess.run(
        [environments.node(), *words],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
