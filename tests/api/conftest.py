"""A daemon on the unisolated backend, and one on the real one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten.errors import SessionNotFound
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_server.api.response import sse
from tests.api.daemon_in_process import serving
from tests.patience import PATIENCE_S
from tests.store.memory_store import MemoryJournal

if TYPE_CHECKING:
    from sandkasten_runtime.engine.engine import Engine


async def _emptied(engine: Engine) -> None:
    for info in await engine.list(all=True):
        # One whose lease is over may have been removed meanwhile.
        with suppress(SessionNotFound):
            await engine.destroy(info.id)
    await engine.aclose()


@pytest.fixture
def patient_streams(monkeypatch):
    """Wait for the refusal of a stream, which on a busy machine may come as its first event."""
    monkeypatch.setattr(sse, "_FIRST_S", PATIENCE_S)


@pytest.fixture
async def engine(tmp_path):
    one = await open_engine(settings(ServerAddress(str(tmp_path / "data"), "unisolated")))
    yield one
    await _emptied(one)


@pytest.fixture
async def daemon(engine):
    async with serving(engine) as one:
        yield one


@pytest.fixture
async def real_engine(tmp_path):
    one = await open_engine(settings(ServerAddress(str(tmp_path / "data"), "local")))
    yield one
    await _emptied(one)


@pytest.fixture
async def real_daemon(real_engine):
    async with serving(real_engine) as one:
        yield one


@pytest.fixture
async def journal():
    one = MemoryJournal()
    yield one
    await one.aclose()


@pytest.fixture
async def journalled_daemon(tmp_path, journal):
    """A daemon on real sandboxes that records commands."""
    engine = await open_engine(
        settings(ServerAddress(str(tmp_path / "data"), "local")), journal=journal
    )
    try:
        async with serving(engine, journal=journal) as one:
            yield one
    finally:
        await _emptied(engine)
