"""The security suite on sandboxes of an ordinary user: one id, no cgroups, no capabilities.

Most of the suite runs again on the host's own files, the essential part on a Debian image, in
subprocesses under a throw-away id. The repository is mounted at /mnt in a private mount namespace,
because it may be in a directory that only root can enter.
"""

from __future__ import annotations

import json
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

from tests import imagekit
from tests.grounds import ARCHIVES
from tests.matrix import record
from tests.security.harness import LONG, poll

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.asked import Found

REPOSITORY = Path(__file__).resolve().parents[2]
# Nobody's: above what distributions give to people, below what sandboxes get.
THROW_AWAY_ID = 54_321
# Every day: what an id, or the lack of cgroups, could change.
FILES = (
    "test_files.py",
    "test_shell.py",
    "test_processes.py",
    "test_archives.py",
    "test_kernel_surface.py",
    "test_posture.py",
    "test_network.py",
)
ONLY_LONG = (
    "test_lifecycle.py",
    "test_output.py",
    "test_resources.py",
    "test_shell_shadowing.py",
)
ESSENTIAL = ("test_posture.py", "test_network.py", "test_kernel_surface.py")
EVERY_DAY = {
    "local": " or ".join(file.removesuffix(".py") for file in FILES),
    "local/debian": " or ".join(file.removesuffix(".py") for file in ESSENTIAL),
}


@dataclass(frozen=True, slots=True)
class Run:
    ground: str
    files: tuple[str, ...]


RUNS = {
    # The image is imported by the user's own hand: all files in one go.
    "local/debian": Run("local/debian", (*FILES, *ONLY_LONG) if LONG else ESSENTIAL),
    **{file: Run("local", (file,)) for file in ((*FILES, *ONLY_LONG) if LONG else FILES)},
}
# What a file may take at worst; everyday runs take a twentieth of it.
TIMEOUT_S = 3_500 if LONG else 1_800
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
        yield {name: pool.submit(_run, run) for name, run in RUNS.items()}


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    text: str
    left: list[str]
    found: Found | None


@pytest.mark.promise("P06")
@pytest.mark.root
@pytest.mark.timeout(TIMEOUT_S + 100)
@pytest.mark.parametrize("name", RUNS)
def test_the_security_suite_passes_for_an_ordinary_user(name, runs):
    outcome = runs[name].result()
    assert outcome.status == 0, outcome.text[-6000:]
    assert outcome.left == []


@pytest.mark.root
def test_results_of_the_ordinary_user_are_recorded(runs):
    for ground, part in EVERY_DAY.items():
        found = [runs[name].result().found for name, run in RUNS.items() if run.ground == ground]
        record.put(f"user {ground}", "security", _together(found), every_day=part)


def _together(found: list[Found | None]) -> Found:
    total: Found = {
        "passed": 0,
        "failed": [],
        "skipped": [],
        "not_asked": {},
        "files": [],
        "seconds": 0.0,
    }
    for one in found:
        assert one is not None
        total["passed"] += one["passed"]
        total["seconds"] += one["seconds"]
        for key in ("failed", "skipped", "files"):
            total[key] += one[key]
        for why, files in one["not_asked"].items():
            total["not_asked"].setdefault(why, []).extend(files)
    return total


@pytest.mark.root
def test_nothing_of_the_ordinary_user_is_left_behind(runs):
    for run in runs.values():
        run.result()
    poll("processes", lambda: _processes_of(THROW_AWAY_ID))


def _run(run: Run) -> Outcome:
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
    if run.ground != "local":
        environment[ARCHIVES] = _here(str(imagekit.debian_tar().parent))
    told = home / "outcome.json"
    command = [
        *("unshare", "--mount", "--propagation", "private", "--", "sh", "-c", STAGE, "sh"),
        str(REPOSITORY),
        *("setpriv", f"--reuid={THROW_AWAY_ID}", f"--regid={THROW_AWAY_ID}", "--clear-groups"),
        *("--inh-caps=-all", "--bounding-set=-all", "--"),
        *(_here(sys.executable), "-m", "pytest", "-q", "--tb=short", f"--ground={run.ground}"),
        *("-o", f"cache_dir={home}/cache", "-o", "tmp_path_retention_policy=none"),
        *(f"--outcome={told}", *(f"tests/security/{file}" for file in run.files)),
    ]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        found = json.loads(told.read_text()) if told.exists() else {}
        expected = {"cache", "images", told.name}
        left = [name for name in os.listdir(home) if name not in expected]
    finally:
        shutil.rmtree(home)
    text = done.stdout + done.stderr
    return Outcome(done.returncode, text, left, found.get(f"security {run.ground}"))


def _processes_of(uid: int) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    status = Path(f"/proc/{name}/status").read_text(errors="replace")
                    if "State:\tZ" not in status:
                        found.append(status.splitlines()[0])
            except OSError:
                continue
    return found
