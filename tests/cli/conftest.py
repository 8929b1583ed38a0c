"""The command line on the unisolated backend: in this process, or as a process of its own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from sandkasten_server.cli.main import main
from sandkasten_server.cli.state import State
from tests.unisolated.composition import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND = [sys.executable, "-m", "sandkasten_server.cli"]
UNISOLATED = [sys.executable, "-m", "tests.unisolated"]


@dataclass(frozen=True, slots=True)
class Spoken:
    status: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def unisolated_only(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("SANDKASTEN_BACKEND", "unisolated")
    monkeypatch.setenv("SANDKASTEN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    # What a caller of the tests exported must not colour or resize anything.
    for name in ("COLUMNS", "LINES", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def same_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon in this process sets up logging, for a stderr that ends with its test."""
    root, ours = logging.getLogger(), logging.getLogger("sandkasten")
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    for one in (root, ours):
        monkeypatch.setattr(one, "level", one.level)


@pytest.fixture
def state() -> State:
    return State(backend="unisolated")


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Spoken]:
    """Run one command line in this process; a sandbox lives only as long as it."""

    def run(*words: str) -> Spoken:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(words)
        out, err = capfd.readouterr()
        code = ended.value.code
        return Spoken(code if isinstance(code, int) else 0, out, err)

    return run


@pytest.fixture
def process() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run one command line in a separate process."""

    def run(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*UNISOLATED, *words],
            input=stdin,
            capture_output=True,
            env={**os.environ},
            timeout=60,
            check=False,
        )

    return run
