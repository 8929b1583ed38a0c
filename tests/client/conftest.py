"""A sandbox in this process's memory: real client, real engine, no isolation."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from sandkasten import AsyncSandbox, Sandbox

Script = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def memory_only(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("SANDKASTEN_BACKEND", "memory")
    monkeypatch.setenv("SANDKASTEN_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox(backend="memory") as made:
        yield made


@pytest.fixture
async def abox() -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandbox(backend="memory") as made:
        yield made


@pytest.fixture
def script() -> Script:
    """Runs a text as a program of its own, on the memory backend."""

    def run(source: str, **options: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(source)],
            env={**os.environ, "SANDKASTEN_BACKEND": "memory"},
            capture_output=True,
            text=True,
            timeout=options.get("timeout", 60),
            check=False,
        )

    return run
