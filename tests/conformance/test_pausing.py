"""Pausing and reclaiming: a backend does them or gives the reason why it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import UnsupportedByBackend
from sandkasten.ports import Pausable, Reclaims
from sandkasten_contract.box import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sandkasten.ports import Cell
    from sandkasten_contract.box import Box


async def _able(verb: Callable[[], Awaitable[object]]) -> bool:
    """Return whether the backend can; otherwise check that it gives a hint."""
    try:
        await verb()
    except UnsupportedByBackend as exc:
        if not exc.hint:
            pytest.fail(f"no hint: {exc}")
        return False
    return True


@pytest.mark.promise("P05")
async def test_a_cell_pauses_or_gives_the_reason_why_it_cannot(cell: Cell, box: Box):
    if not isinstance(cell, Pausable):
        return
    if not await _able(cell.pause):
        assert not await _able(cell.resume)
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


@pytest.mark.aspect("ending")
async def test_a_paused_cell_can_be_destroyed(cell: Cell):
    if isinstance(cell, Pausable) and await _able(cell.pause):
        await cell.destroy()


async def test_a_cell_reclaims_memory_or_gives_the_reason_why_it_cannot(cell: Cell):
    if isinstance(cell, Reclaims) and await _able(cell.reclaim):
        assert await cell.reclaim() >= 0
