"""A daemon on the unisolated backend, and one on the real one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten.daemon.engine_assembly import open_engine
from sandkasten.errors import SessionNotFound
from tests.api.daemon_in_process import serving
from tests.store.memory_store import MemoryJournal

if TYPE_CHECKING:
    from sandkasten.engine.engine import Engine


async def _emptied(engine: Engine) -> None:
    for info in await engine.list(all=True):
        # One whose lease is over may have been removed meanwhile.
        with suppress(SessionNotFound):
            await engine.destroy(info.id)
    await engine.aclose()


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
