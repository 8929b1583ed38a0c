"""The same attacks on sandboxes that an ordinary user made: one id, no cgroups, no capability.

Each file runs again in a subprocess under a throw-away id. The repository is shown to it at /mnt in
a mount namespace of its own, because it may lie where only root can walk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.security.harness import LONG

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
# Nobody's: above what distributions give to people, below what sandboxes get.
THROW_AWAY_ID = 54_321
# What to run of each file; of the shadowing matrix, whose cases differ in nothing that an id could
# change, only the part that meddles with descriptors and limits (in full: all of it).
FILES = {
    "test_shell_shadowing.py": "" if LONG else "at_once or trick or option",
    "test_files.py": "",
    "test_shell.py": "",
    "test_processes.py": "",
    "test_archives.py": "",
    "test_kernel_surface.py": "",
    "test_posture.py": "",
    "test_network.py": "",
}
# Most of these cases wait for a deadline; two at once use the waiting.
AT_ONCE = 2
STAGE = 'mount --bind "$1" /mnt && shift && cd /mnt && exec "$@"'


def _here(path: str) -> str:
    """The same path, seen through /mnt."""
    prefix = str(REPOSITORY)
    return "/mnt" + path.removeprefix(prefix) if path.startswith(prefix + "/") else path


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, Future[Outcome]]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {file: pool.submit(_run, file) for file in FILES}


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    text: str
    left: list[str]


@pytest.mark.root
@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", FILES)
def test_the_same_holds_for_an_ordinary_user(file, runs):
    outcome = runs[file].result()
    assert outcome.status == 0, outcome.text[-6000:]
    assert outcome.left == []


@pytest.mark.root
def test_nothing_of_the_ordinary_user_is_left(runs):
    for run in runs.values():
        run.result()
    assert _processes_of(THROW_AWAY_ID) == []


def _run(file: str) -> Outcome:
    home = Path(tempfile.mkdtemp(prefix="pytest-of-ordinary-", dir="/var/tmp"))
    os.chown(home, THROW_AWAY_ID, THROW_AWAY_ID)
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": "/mnt/src",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if LONG:
        environment["SANDKASTEN_LONG"] = "1"
    command = [
        *("unshare", "--mount", "--propagation", "private", "--", "sh", "-c", STAGE, "sh"),
        str(REPOSITORY),
        *("setpriv", f"--reuid={THROW_AWAY_ID}", f"--regid={THROW_AWAY_ID}", "--clear-groups"),
        *("--inh-caps=-all", "--bounding-set=-all", "--"),
        *(_here(sys.executable), "-m", "pytest", f"tests/security/{file}", "-q", "-m", "not root"),
        *("--tb=short", "-o", f"cache_dir={home}/cache", "-o", "tmp_path_retention_policy=none"),
        *("-k", FILES[file]),
    ]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=590, check=False
        )
        left = [name for name in os.listdir(home) if name != "cache"]
    finally:
        shutil.rmtree(home)
    return Outcome(done.returncode, done.stdout + done.stderr, left)


def _processes_of(uid: int) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    status = Path(f"/proc/{name}/status").read_text()
                    if "State:\tZ" not in status:
                        found.append(status.splitlines()[0])
            except OSError:
                continue
    return found
