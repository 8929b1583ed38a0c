"""Rows and waiting for tests of the tables in PostgreSQL."""

from __future__ import annotations

import asyncio

from sandkasten.model.journal_rows import SessionRow
from tests.patience import PATIENCE_S


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  (other processes change it)
            await asyncio.sleep(0.01)


def session(number: int) -> SessionRow:
    return SessionRow(f"sbx_{number:016x}", "default", "host", "local", 1000.0 + number)
