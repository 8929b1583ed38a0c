"""Fifty concurrent sandboxes, two of them hostile: the others answer."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import pytest

from sandkasten import AsyncSandbox
from tests.patience import FAR_TOO_LATE_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.promise("P25")

COUNT = 50
MEMORY_BOMB = "x = bytearray()\nwhile True: x += bytes(10_000_000)"


@pytest.mark.root
@pytest.mark.slow_loop
@pytest.mark.timeout(400)
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no limit on memory as a whole")
@pytest.mark.long(reason="`make test` has each bomb alone")
async def test_fifty_sandboxes_answer_beside_a_memory_bomb_and_a_fork_bomb(
    fresh_data_dir: Path,
) -> None:
    boxes: list[AsyncSandbox] = []
    try:
        limits = {"mem_limit_mb": 128, "workspace_mb": 20, "pids_limit": 100, "tmp_mb": 8}
        begun = [AsyncSandbox(limits=limits, data_dir=fresh_data_dir).begin() for _ in range(COUNT)]
        made = await asyncio.gather(*begun, return_exceptions=True)
        boxes += [box for box in made if isinstance(box, AsyncSandbox)]
        assert [box for box in made if not isinstance(box, AsyncSandbox)] == []
        assert len({box.id for box in boxes}) == COUNT
        for number, box in enumerate(boxes):
            await box.exec(f"echo {number} >/workspace/number")
        memory = asyncio.ensure_future(boxes[0].exec(["python3", "-c", MEMORY_BOMB]))
        forks = asyncio.ensure_future(
            boxes[1].exec(["bash", "-c", ":(){ :|:& };:\nsleep 30"], timeout_seconds=4)
        )
        began = time.monotonic()
        answers = await asyncio.gather(
            *[box.exec("cat /workspace/number; pwd") for box in boxes[2:]]
        )
        assert [a.output for a in answers] == [f"{n}\n/workspace\n" for n in range(2, COUNT)]
        assert time.monotonic() - began < FAR_TOO_LATE_S
        full = await boxes[2].exec("head -c 100M /dev/zero >/workspace/full")
        assert full.exit_code != 0
        assert (await boxes[2].stat("/workspace/full")).size <= 20 * 1024 * 1024
        bombed = await memory
        assert (bombed.oom_killed, bombed.why and bombed.why.code) == (True, "OOM")
        assert (await forks).timed_out
        for box in boxes:
            assert (await box.exec(["echo", "ok"])).output == "ok\n"
    finally:
        ended = await asyncio.gather(*[box.close() for box in boxes], return_exceptions=True)
    assert [e for e in ended if isinstance(e, BaseException)] == []


async def test_the_same_session_key_opens_one_sandbox(data_dir: Path) -> None:
    boxes = [AsyncSandbox(data_dir=data_dir, session_key="workflow:7:shared") for _ in range(30)]
    opened = await asyncio.gather(*[box.begin() for box in boxes])
    assert len({box.id for box in opened}) == 1
    await opened[0].close()
