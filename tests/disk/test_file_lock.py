"""Locks between holders of different descriptors, as between processes."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager

import pytest

from sandkasten.disk.file_lock import locked, open_lock, try_lock, try_lock_path, wait_for_lock
from tests.patience import PATIENCE_S


@contextmanager
def opened(path):
    fd = open_lock(path)
    try:
        yield fd
    finally:
        os.close(fd)


def test_exclusive_lock_excludes_and_shared_locks_do_not(tmp_path):
    with opened(tmp_path / "lock") as one, opened(tmp_path / "lock") as two:
        assert try_lock(one, shared=True)
        assert try_lock(two, shared=True)
        assert not try_lock(two)
        assert wait_for_lock(two, timeout_s=0) is False
    with opened(tmp_path / "lock") as three:
        assert wait_for_lock(three) is True


def test_waiting_can_be_given_up(tmp_path):
    def give_up() -> None:
        raise InterruptedError

    with opened(tmp_path / "lock") as one, opened(tmp_path / "lock") as two:
        assert try_lock(one)
        with pytest.raises(InterruptedError):
            wait_for_lock(two, while_waiting=give_up)


def test_lock_file_that_was_removed_meanwhile_is_not_a_lock(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    held = try_lock_path(path)
    assert held is not None
    assert try_lock_path(path) is None
    path.unlink()
    fresh = try_lock_path(path)
    assert fresh is not None
    os.close(fresh)
    os.close(held)

    def removed_first(fd: int, *, shared: bool = False) -> bool:
        path.unlink()
        return try_lock(fd, shared=shared)

    monkeypatch.setattr("sandkasten.disk.file_lock.try_lock", removed_first)
    assert try_lock_path(path) is None


async def test_one_task_at_a_time_holds_the_lock(tmp_path):
    inside = 0

    async def work() -> None:
        nonlocal inside
        async with locked(tmp_path / "lock"):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(work())
