"""One engine per file of tests, because probing the host takes a while."""

from __future__ import annotations

import pytest

from tests.agents.desk import cleared, fresh, opened


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def local(tmp_path_factory, anyio_backend):
    async with opened(tmp_path_factory.mktemp("l")) as desk:
        yield desk


@pytest.fixture
async def tools(local):
    """A toolbox on real local sandboxes, none of which exists yet."""
    yield fresh(local.engine, local.store)
    await cleared(local.engine)


@pytest.fixture
async def unisolated_tools(tmp_path):
    """A toolbox for cases that are decided before a sandbox is reached."""
    async with opened(tmp_path / "d", "unisolated") as desk:
        yield desk
