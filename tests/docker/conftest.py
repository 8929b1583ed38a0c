"""Engines for failure tests. Tests that restart an engine have their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

# Here, where no event loop waits for it.
import aiodocker  # noqa: F401
import pytest

from tests.docker.site import revive
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
def engine() -> Reached:
    """The engine of the run, which other tests share: nothing of ours may stay in it."""
    return lent.engine("private", "busybox")


@pytest.fixture(scope="session")
def _stoppable_engine() -> Iterator[Engine]:
    with Engine() as found:
        stock.put(found.reached, "busybox")
        yield found


@pytest.fixture(scope="session")
def _live_restore_engine() -> Iterator[Engine]:
    with Engine(live_restore=True) as found:
        stock.put(found.reached, "busybox")
        yield found


@pytest.fixture
def stoppable_engine(_stoppable_engine: Engine) -> Iterator[Engine]:
    """An engine that may be stopped, which ends its containers."""
    yield _stoppable_engine
    revive(_stoppable_engine)


@pytest.fixture
def live_restore_engine(_live_restore_engine: Engine) -> Iterator[Engine]:
    """An engine that may be stopped, and whose containers survive it."""
    yield _live_restore_engine
    revive(_live_restore_engine)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"
