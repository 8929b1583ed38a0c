"""Engines for failure tests. Tests that restart an engine have their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

# Here, where no event loop waits for it.
import aiodocker  # noqa: F401
import pytest

from plugins.docker.tests.site import revive
from tests.engines import lent, stock
from tests.engines.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engines.reached import Reached


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def docker_engine() -> Reached:
    """The engine of the run, which other tests share: nothing of ours may stay in it."""
    return lent.engine("private", "busybox")


@pytest.fixture(scope="session")
def _stoppable_docker() -> Iterator[Engine]:
    with Engine() as running:
        stock.put(running.reached, "busybox")
        yield running


@pytest.fixture(scope="session")
def _live_restore_docker() -> Iterator[Engine]:
    with Engine(live_restore=True) as running:
        stock.put(running.reached, "busybox")
        yield running


@pytest.fixture
def stoppable_docker(_stoppable_docker: Engine) -> Iterator[Engine]:
    """An engine that may be stopped, which ends its containers."""
    yield _stoppable_docker
    revive(_stoppable_docker)


@pytest.fixture
def live_restore_docker(_live_restore_docker: Engine) -> Iterator[Engine]:
    """An engine that may be stopped, and whose containers survive it."""
    yield _live_restore_docker
    revive(_live_restore_docker)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"
