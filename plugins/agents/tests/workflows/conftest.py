"""One expression evaluator per module of tests, because starting its process takes time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten_agents.workflows.expressions import Expressions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def expressions(anyio_backend: str) -> AsyncIterator[Expressions]:
    async with Expressions() as evaluating:
        yield evaluating
