"""The product as a user has it: the public objects and the command line, on real sandboxes.

At the end of every test nothing of its sandboxes may be left on the host.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten import Sandbox
from sandkasten.model.ids import SandboxId
from sandkasten_runtime.backends.local.backend import LocalBackend
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
POOL_SIZE = "SANDKASTEN_POOL_ONESHOT_SPARES"


@pytest.fixture(scope="session")
def suite_data_dir() -> Iterator[Path]:
    """One data directory for the suite: an engine keeps the one it was opened with."""
    path = Path(tempfile.mkdtemp(prefix="pytest-of-acceptance-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def data_dir(suite_data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Also set in the environment, for the command line and for programs.

    Without a warm pool, whose sandbox would be there for seconds after each test.
    """
    monkeypatch.setenv("SANDKASTEN_DATA_DIR", str(suite_data_dir))
    monkeypatch.setenv(POOL_SIZE, "0")
    yield suite_data_dir
    deadline = time.monotonic() + PATIENCE_S
    while (left := leftovers(suite_data_dir)) and time.monotonic() < deadline:
        time.sleep(0.05)
    _tidy(suite_data_dir)
    assert left == []


def _tidy(place: Path) -> None:
    """Remove leftovers, so that one failure does not fail later tests."""
    backend = LocalBackend(place)

    async def remove() -> None:
        for cell in (place / "cells").glob("*"):
            await backend.discard(SandboxId(cell.name))

    asyncio.run(remove())


@pytest.fixture
def make(data_dir: Path) -> Callable[..., Sandbox]:
    """`Sandbox` in our data directory."""
    return functools.partial(Sandbox, data_dir=data_dir)


@pytest.fixture
def fresh_data_dir() -> Iterator[Path]:
    """A new data directory: for incomplete hosts, and for a first use."""
    path = Path(tempfile.mkdtemp(prefix="pytest-of-ruin-", dir="/var/tmp"))
    yield path
    deadline = time.monotonic() + PATIENCE_S
    while (left := leftovers(path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    _tidy(path)
    shutil.rmtree(path, ignore_errors=True)
    assert left == []


def leftovers(data_dir: Path) -> list[str]:
    """Cells, processes and loop devices that belong to this data directory."""
    found = [str(path) for path in data_dir.glob("cells/*")]
    ids = {path.name for path in data_dir.glob("cells/*")}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if str(data_dir) in Path(f"/proc/{name}/mountinfo").read_text():
                    found.append(f"process {name}")
            except OSError:
                continue
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if str(data_dir) in file.read_text():
                found.append(f"loop device {file}")
        except OSError:
            continue
    cgroups = Path("/sys/fs/cgroup").glob("*/sandkasten/sbx_*")
    return found + [f"cgroup {cgroup}" for cgroup in cgroups if cgroup.name in ids]


@dataclass(frozen=True, slots=True)
class Said:
    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def sandkasten(*words: str, timeout_s: float = 60.0, **env: str) -> Said:
    """The command, as a user types it."""
    done = subprocess.run(
        [sys.executable, "-m", "sandkasten_server.cli", *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **env},
    )
    return Said(done.returncode, done.stdout, done.stderr)
