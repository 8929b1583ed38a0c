"""Programs run in the environment of a framework, on sandboxes of the local backend."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests import environments

if TYPE_CHECKING:
    from collections.abc import Iterator

# Without a network, so that nothing depends on one; with a loopback device, which some use.
ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
TIMEOUT_S = 900


class RunsInFramework(Protocol):
    def __call__(self, extra: str, *words: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def in_framework() -> Iterator[RunsInFramework]:
    """Run `python WORDS…` in the environment of a framework, in an empty directory."""
    with tempfile.TemporaryDirectory(prefix="pytest-of-frameworks-", dir="/var/tmp") as place:
        here = Path(place) / "here"
        here.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SANDKASTEN_", "PYTHON"))}
        env = {
            **kept,
            "HOME": str(here),
            "SANDKASTEN_DATA_DIR": f"{place}/data",
            "SANDKASTEN_BACKEND": "local",
        }

        def run(extra: str, *words: str) -> subprocess.CompletedProcess[str]:
            python = environments.framework(extra)
            return subprocess.run(
                [*ALONE, str(python), *words],
                cwd=here,
                env=env,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )

        yield run
