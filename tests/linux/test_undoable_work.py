"""Work in a thread is undone after its end, also when a loop cancels all its tasks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sandkasten_runtime.linux.undoable_work import whole_or_nothing
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_what_a_thread_makes_is_undone_when_every_task_is_cancelled():
    done: list[str] = []
    started, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def make() -> None:
        loop.call_soon_threadsafe(started.set)
        go.wait(PATIENCE_S)
        done.append("made")

    before = asyncio.all_tasks()
    work = asyncio.create_task(whole_or_nothing(make, lambda: done.append("undone")))
    await started.wait()
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert done == ["made", "undone"]
