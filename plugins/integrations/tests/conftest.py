"""Programs run in the environment of a framework, on sandboxes of the local backend."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from plugins.integrations.tests.frameworks import ROOT
from tests import environments

if TYPE_CHECKING:
    from collections.abc import Iterator

# Without a network, so that nothing depends on one; with a loopback device, which some use.
ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
TIMEOUT_S = 900
# Programs for the environment of a framework; those for its pytest are run without our settings.
DRIVES = Path(__file__).parent / "drives"
PYTEST_SETTINGS = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
addopts = -q -p no:cacheprovider --tb=short
"""


class RunsInFramework(Protocol):
    def __call__(self, extra: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]: ...


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Return the last line of a pytest as numbers: `{"passed": 44}`."""
    last = (done.stdout.splitlines() or [""])[-1]
    matches = re.findall(r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed|xpassed)", last)
    return {kind: int(number) for number, kind in matches}


def source_of(package: str, version: str, lock: str, place: Path) -> Path:
    """Return the unpacked source distribution of a package, whose hash is in the lock."""
    wanted = f"{package}=={version}"
    words = ("download", "--quiet", "--no-deps", "--no-binary", package, "-d", str(place), wanted)
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    (archive,) = place.glob("*.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert digest in (ROOT / "requirements" / "frameworks" / f"{lock}.txt").read_text()
    with tarfile.open(archive) as tar:
        tar.extractall(place)
    (folder,) = (entry for entry in place.iterdir() if entry.is_dir())
    return folder


@pytest.fixture
def in_framework() -> Iterator[RunsInFramework]:
    """Run `python WORDS…` in the environment of a framework, in an empty directory."""
    with tempfile.TemporaryDirectory(prefix="pytest-of-frameworks-", dir="/var/tmp") as place:
        here = Path(place) / "here"
        here.mkdir()
        (here / "pytest.ini").write_text(PYTEST_SETTINGS)
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("SANDKASTEN_", "PYTHON"))
        }
        base = {
            **inherited,
            "HOME": str(here),
            "SANDKASTEN_DATA_DIR": f"{place}/data",
            "SANDKASTEN_BACKEND": "local",
        }

        def run(extra: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
            python = environments.framework(extra)
            if words[:2] == ("-m", "pytest"):
                words = (*words, "-c", str(here / "pytest.ini"), "--confcutdir", str(DRIVES))
            return subprocess.run(
                [*ALONE, str(python), *words],
                cwd=here,
                env={**base, **env},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )

        yield run
