"""An unisolated sandbox of this process: real client, real engine, real runner."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from sandkasten import AsyncSandbox, Sandbox
from tests.unisolated import composition

Script = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def unisolated_only(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("SANDKASTEN_BACKEND", "unisolated")
    monkeypatch.setenv("SANDKASTEN_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox(backend="unisolated") as made:
        yield made


@pytest.fixture
async def abox() -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandbox(backend="unisolated") as made:
        yield made


@pytest.fixture
def script() -> Script:
    """Run source code as a separate program, in which `sandboxes` are unisolated."""

    def run(source: str, *, sandboxes: bool = True) -> subprocess.CompletedProcess[str]:
        first = "from tests.unisolated.composition import install; install()\n" if sandboxes else ""
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", first + textwrap.dedent(source)],
            env=composition.environ(SANDKASTEN_BACKEND=composition.NAME),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
