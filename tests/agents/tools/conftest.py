from __future__ import annotations

import pytest

from tests.agents.tools.desk import opened


@pytest.fixture
async def desk(tmp_path):
    async with opened(tmp_path / "d") as one:
        yield one


@pytest.fixture
async def memory_desk(tmp_path):
    """For what is decided before a sandbox is reached."""
    async with opened(tmp_path / "d", "memory") as one:
        yield one
