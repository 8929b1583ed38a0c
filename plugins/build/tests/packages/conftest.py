"""One data directory for the suite: pip is copied and templates are created once."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from sandkasten_runtime.engine.engine import Engine

    Opened = Callable[..., AbstractAsyncContextManager[Engine]]


@pytest.fixture(scope="session")
def data_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pytest-of-packages-", dir="/var/tmp"))
    yield path
    leftovers = [entry.name for entry in (path / "cells").glob("*")]
    making = [entry.name for entry in (path / "packages" / "making").glob("*")]
    shutil.rmtree(path)
    assert (leftovers, making) == ([], [])


@pytest.fixture
def opened(data_dir: Path, tmp_path: Path) -> Opened:
    """Open an engine with these `packages` settings; its sandboxes are removed with it."""

    @asynccontextmanager
    async def open_with(**settings: object) -> AsyncIterator[Engine]:
        backend = str(settings.pop("backend", "local"))
        flags = {f"packages.{name}": str(value) for name, value in settings.items()}
        loaded = load({"data_dir": str(data_dir), "backend": backend, **flags}, {}, tmp_path)
        engine = await open_engine(loaded)
        try:
            yield engine
        finally:
            for info in await engine.list(all=True):
                await engine.destroy(info.id)
            await engine.aclose()

    return open_with
