"""The contract once more as an ordinary user.

Runs the suite of this directory in subprocesses under a throw-away uid, on the `local` backend with
the host's own files and with a Debian image, which the user imports. Both run concurrently because
they mostly wait; a part of the second runs every day.
"""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sandkasten
from tests import imagekit
from tests.grounds import ARCHIVES, LONG, OFTEN
from tests.matrix import record

if TYPE_CHECKING:
    from collections.abc import Iterator

# Far from anything useradd gives out, and outside the ranges sandboxes are mapped to.
UID = 59_871
REPOSITORY = Path(__file__).resolve().parents[2]
# Mostly creating sandboxes: the whole suite takes about as long as it takes root.
TIMEOUT_S = 1_800
EVERY_DAY = {"local": "", "local/debian": OFTEN}
_NOT_NEEDED = shutil.ignore_patterns("mypy*", "ruff*", "pip*", "docker*", "__pycache__", "*.pyi")


def as_user(
    home: Path, *argv: str, pythonpath: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    command = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--", *argv]
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": pythonpath,
        "PYTHONDONTWRITEBYTECODE": "1",
        ARCHIVES: str(home.parent / "archives"),
    }
    return subprocess.run(
        command,
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home of the user's own, with what the suite needs where only root may read it."""
    made = Path(tempfile.mkdtemp(prefix="sku-", dir="/var/tmp"))
    made.chmod(0o755)
    own = made / "home"
    own.mkdir()
    os.chown(own, UID, UID)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def interpreter(home: Path) -> tuple[str, str]:
    """A Python the user may run and a path on which it finds pytest and this project."""
    source = Path(sandkasten.__path__[0]).parent
    libraries = [Path(sysconfig.get_path("purelib")), *map(Path, site.getsitepackages())]
    installed = [str(path) for path in dict.fromkeys(libraries)]
    probe = "import anyio, pytest, pytest_timeout, sandkasten.backends.local"
    staged = home / "lib"
    said: list[str] = []
    for stage in (False, True):
        if stage:
            # The checkout or the environment lies where only root may look: lend a copy.
            for library in filter(Path.is_dir, libraries):
                shutil.copytree(library, staged, ignore=_NOT_NEEDED, dirs_exist_ok=True)
            shutil.copytree(source / "sandkasten", staged / "sandkasten", dirs_exist_ok=True)
        paths = [str(staged)] if stage else [str(source), *installed]
        for python in (sys.executable, "/usr/bin/python3"):
            path = ":".join(paths)
            ran = as_user(home / "home", python, "-c", probe, pythonpath=path, timeout=60)
            if ran.returncode == 0:
                return python, path
            said.append(f"{python}: {ran.stderr.strip()[-300:]}")
    pytest.fail(
        "no interpreter that an ordinary user could run the suite with:\n" + "\n".join(said)
    )


@pytest.fixture(scope="module")
def suite(home: Path) -> Path:
    """A copy of the tests, and the archives they make images of."""
    shutil.copytree(
        REPOSITORY / "tests", home / "tests", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(REPOSITORY / "pyproject.toml", home / "pyproject.toml")
    archives = home / "archives"
    archives.mkdir()
    shutil.copy(imagekit.debian_tar(), archives / "debian.tar")
    return home / "tests" / "conformance"


@pytest.fixture(scope="module")
def runs(home: Path, suite: Path) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    python, path = interpreter(home)

    def run(ground: str) -> subprocess.CompletedProcess[str]:
        part = "" if LONG else EVERY_DAY[ground]
        return as_user(
            home / "home",
            *(python, "-m", "pytest", "-q", f"--rootdir={home}"),
            f"--config-file={home / 'pyproject.toml'}",
            f"--override-ini=cache_dir={_own(home, ground)}-cache",
            f"--outcome={_own(home, ground)}.json",
            str(suite),
            f"--backend={ground}",
            *(["-k", part] if part else []),
            pythonpath=f"{home}:{path}",
            timeout=TIMEOUT_S,
        )

    with ThreadPoolExecutor(len(EVERY_DAY)) as pool:
        yield {ground: pool.submit(run, ground) for ground in EVERY_DAY}


def _own(home: Path, ground: str) -> Path:
    return home / "home" / ground.replace("/", "-")


@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("ground", EVERY_DAY)
def test_the_contract_holds_for_an_ordinary_user_too(ground, home, runs):
    ran = runs[ground].result()
    assert ran.returncode == 0, f"{ran.stdout[-20_000:]}\n{ran.stderr[-5_000:]}"
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
    found = json.loads(Path(f"{_own(home, ground)}.json").read_text())[f"contract {ground}"]
    record.put(f"user {ground}", "contract", found, every_day=EVERY_DAY[ground])
