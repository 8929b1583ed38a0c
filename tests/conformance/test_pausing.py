"""Pausing and reclaiming: a backend does them, or says why it cannot; it never pretends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import UnsupportedByBackend
from sandkasten.ports import Pausable, Reclaims
from tests.conformance.box import eventually

if TYPE_CHECKING:
    from sandkasten.ports import Cell
    from tests.conformance.box import Box


async def test_a_cell_that_says_it_pauses_stands_still_or_gives_a_reason(cell: Cell, box: Box):
    if not isinstance(cell, Pausable):
        return
    try:
        await cell.pause()
    except UnsupportedByBackend as exc:
        assert exc.hint
        with pytest.raises(UnsupportedByBackend):
            await cell.resume()
        return
    await cell.pause()
    before = (await cell.usage()).cpu_usec
    await cell.resume()
    await cell.resume()
    started = await box.begin(["sh", "-c", "while :; do :; done"])

    async def works() -> bool:
        now = (await cell.usage()).cpu_usec
        return now is None or before is None or now > before

    await eventually(works, True)
    await cell.pause()
    stood = (await cell.usage()).cpu_usec
    assert (await cell.usage()).cpu_usec == stood
    await cell.resume()
    await box.ask("exec.signal", exec_id=started, signal=9)


async def test_a_paused_cell_can_be_destroyed(cell: Cell):
    if isinstance(cell, Pausable):
        try:
            await cell.pause()
        except UnsupportedByBackend:
            return
        await cell.destroy()


async def test_a_cell_that_gives_memory_back_counts_it_or_gives_a_reason(cell: Cell):
    if isinstance(cell, Reclaims):
        try:
            assert await cell.reclaim() >= 0
        except UnsupportedByBackend as exc:
            assert exc.hint
