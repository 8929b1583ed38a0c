"""Work that finishes although its caller was cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from sandkasten.disk.cleanup import ended, finish, in_thread
from tests.patience import PATIENCE_S


async def test_a_deadline_in_the_cleanup_of_a_cancelled_task_ends_only_its_own_step():
    steps: list[str] = []

    async def clean() -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            steps.append("late")
        steps.append("next")

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await finish(clean())

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["late", "next"]


def test_the_end_of_a_loop_waits_for_a_thread_that_works():
    begun, leave = threading.Event(), threading.Event()
    done: list[str] = []

    def write() -> None:
        begun.set()
        leave.wait(PATIENCE_S)
        done.append("written")

    async def work() -> None:
        try:
            await finish(in_thread(write), hurry=leave.set)
        finally:
            done.append("lock released")

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(work())
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        return task

    # It ends while the thread works, and cancels every task.
    assert asyncio.run(main()).cancelled()
    assert done == ["written", "lock released"]


async def test_a_failure_that_no_one_waits_for_is_not_reported():
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))

    async def fail() -> None:
        raise ValueError

    failing = asyncio.ensure_future(fail())
    await ended(failing)
    del failing
    gc.collect()
    assert reported == []
