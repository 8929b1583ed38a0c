"""A daemon on the memory backend, and one on the real one."""

from __future__ import annotations

import pytest

from sandkasten.client.server.embedded import Place, settings
from sandkasten.daemon.compose import open_engine
from sandkasten.store.memory import MemoryJournal
from tests.api.serving import serving


@pytest.fixture
async def engine(tmp_path):
    one = await open_engine(settings(Place(str(tmp_path / "data"), "memory")))
    yield one
    for info in await one.list(all=True):
        await one.destroy(info.id)
    await one.aclose()


@pytest.fixture
async def daemon(engine):
    async with serving(engine) as one:
        yield one


@pytest.fixture
async def real_engine(tmp_path):
    one = await open_engine(settings(Place(str(tmp_path / "data"), "local")))
    yield one
    for info in await one.list(all=True):
        await one.destroy(info.id)
    await one.aclose()


@pytest.fixture
async def real_daemon(real_engine):
    async with serving(real_engine) as one:
        yield one


@pytest.fixture
async def journal():
    one = MemoryJournal()
    yield one
    await one.aclose()
