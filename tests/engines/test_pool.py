"""The pool of cells: those created in advance are new, reused ones are reset."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import SandboxLost
from sandkasten_contract.box import Box
from tests import cell_pool
from tests.cell_pool import Pool, taken_away
from tests.patience import PATIENCE_S
from tests.platform_choice import GROUNDS, open_backend, spec_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from sandkasten.model.ids import SandboxId

GROUND = GROUNDS["local"]


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Callable[[bool], Pool]]:
    """Create a pool; everything left by a failed test is removed."""

    def make(reuse: bool) -> Pool:
        return Pool(lambda: open_backend(GROUND, tmp_path), spec_on(GROUND), reuse=reuse, ahead=1)

    yield make
    backend = open_backend(GROUND, tmp_path)
    for sandbox_id in await backend.owned():
        await taken_away(backend, sandbox_id)


async def _on(tmp_path: Path, sandbox_id: SandboxId, *commands: str) -> list[bytes]:
    box = await Box.open(await open_backend(GROUND, tmp_path).attach(sandbox_id))
    try:
        return [(await box.run(command)).stdout for command in commands]
    finally:
        await box.aclose()


async def test_a_reused_cell_is_reset_completely(pool, tmp_path):
    made = await asyncio.to_thread(pool, True)
    first = await asyncio.to_thread(made.take)
    spoil = "echo a >/workspace/.a; mkdir -p ~/b/c; chmod 0 ~/b; echo t >/tmp/t; chmod 700 ."
    await _on(tmp_path, first, spoil, "x=1; sleep 1000 & cd /tmp")
    made.give_back(first)
    again = await asyncio.to_thread(made.take)
    assert made.thrown == []
    assert again == first
    look = "find /workspace ~ /tmp | sort; stat -c %a /workspace", "echo $x$PWD", "ps -A -o comm"
    files, shell, running = await _on(tmp_path, again, *look)
    assert files == b"/home/sandbox\n/tmp\n/workspace\n755\n"
    assert shell == b"/workspace\n"
    assert b"sleep" not in running
    made.give_back(again)
    await asyncio.to_thread(made.close)


async def test_idle_cells_are_removed_and_made_again(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(cell_pool, "_IDLE_S", 0.01)
    made = await asyncio.to_thread(pool, True)
    first = await asyncio.to_thread(made.take)
    made.give_back(first)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*map(asyncio.wrap_future, made._behind))
    assert await open_backend(GROUND, tmp_path).owned() == []
    other = await asyncio.to_thread(made.take)
    assert other != first
    assert await _on(tmp_path, other, "echo new") == [b"new\n"]
    made.give_back(other)
    await asyncio.to_thread(made.close)


async def test_a_cell_that_cannot_be_reset_is_discarded(pool, tmp_path):
    made = await asyncio.to_thread(pool, True)
    first = await asyncio.to_thread(made.take)
    # Nothing that the reset knows of: a file that was there is gone.
    made._looks[first] += "/tmp/what-was-there 644 1000 1000\n"
    made.give_back(first)
    other = await asyncio.to_thread(made.take)
    assert other != first
    assert "what-was-there" in made.thrown[0]
    made.give_back(other, spoilt=True)
    await asyncio.to_thread(made.close)


async def test_a_cell_destroyed_by_its_test_is_replaced(pool, tmp_path):
    made = await asyncio.to_thread(pool, True)
    first = await asyncio.to_thread(made.take)
    await (await open_backend(GROUND, tmp_path).attach(first)).destroy()
    made.give_back(first)
    other = await asyncio.to_thread(made.take)
    assert (other != first, len(made.thrown)) == (True, 1)
    made.give_back(other)
    await asyncio.to_thread(made.close)


async def test_a_cell_created_in_advance_is_used_once(pool, tmp_path):
    made = await asyncio.to_thread(pool, False)
    first = await asyncio.to_thread(made.take)
    made.give_back(first)
    second = await asyncio.to_thread(made.take)
    assert second != first
    made.give_back(second)
    await asyncio.to_thread(made.close)
    with pytest.raises(SandboxLost):
        await open_backend(GROUND, tmp_path).attach(first)
