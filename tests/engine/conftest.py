"""Engines on the unisolated backend, closed and checked for leftovers afterwards."""

from __future__ import annotations

import pytest

from sandkasten.model.sandbox.sandbox_values import CreateRequest
from tests.engine.injections import World
from tests.store.memory_store import MemoryJournal


@pytest.fixture
async def world():
    one = World()
    yield one
    await one.engine.aclose()
    for the_id in await one.backend.real.owned():
        await one.backend.real.discard(the_id)


@pytest.fixture
async def journaled():
    """An engine with a journal."""
    one = World(journal=MemoryJournal())
    yield one
    await one.engine.aclose()
    for the_id in await one.backend.real.owned():
        await one.backend.real.discard(the_id)


@pytest.fixture
def engine(world):
    return world.engine


@pytest.fixture
async def box(engine):
    """The id of a running sandbox."""
    return (await engine.create(CreateRequest())).id
