"""Runs in PostgreSQL, used by several daemons."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import (
    BackendUnavailable,
)
from sandkasten_agents.run_lifecycle import ClaimedRun, Outcome, RunLifecycle
from sandkasten_cluster_store.postgres.postgres_runs import PostgresRuns
from sandkasten_runtime.engine.clock import SystemClock
from tests.store.test_runs import ROW

if TYPE_CHECKING:
    from sandkasten.model.runs.run_values import RunRow

pytestmark = pytest.mark.promise("P98")


async def test_a_run_that_was_waited_for_leaves_nothing_in_memory(open_postgres):
    runs = PostgresRuns(await open_postgres())
    await runs.begin(ROW)
    assert not await runs.changed(ROW.id, 0, 0.01)
    assert len(runs._changes) == 0


async def test_a_claimed_run_is_neither_claimed_nor_removed_by_another_daemon(open_postgres):
    one, other = [PostgresRuns(await open_postgres()) for _ in range(2)]
    await one.begin(replace(ROW, status="completed", ended_at=10.0))
    async with one.claim(ROW.id) as ours, other.claim(ROW.id) as theirs, one.claim(ROW.id) as again:
        assert (ours, theirs, again) == (True, False, False)
        assert await other.prune(20.0) == 0
    async with other.claim("run_00000000000000ff") as ours:
        assert not ours
    assert await other.prune(5.0) == 0
    await one.note(ROW.id, "x", {"text": "a\0b\ud800"})
    assert await other.prune(20.0) == 1
    assert await one.get(ROW.id) is None
    assert list(await one.events(ROW.id)) == []


async def test_a_run_whose_claim_is_lost_is_neither_ended_nor_cleaned_up(open_postgres):
    """Another daemon may continue it already."""
    one, other = await open_postgres(), await open_postgres()
    runs, working, cleaned = PostgresRuns(one), asyncio.Event(), []

    async def clean(row: RunRow) -> dict[str, str]:
        cleaned.append(row.id)
        return {}

    async def work(_: ClaimedRun) -> Outcome:
        working.set()
        await asyncio.Event().wait()
        raise AssertionError

    await runs.begin(ROW)
    lifecycle = RunLifecycle(runs, clean, SystemClock())
    executing = asyncio.create_task(lifecycle.execute(ROW, work))
    await working.wait()
    pid = await one.in_session("SELECT pg_backend_pid()")
    await other.execute("SELECT pg_terminate_backend($1)", pid)
    with pytest.raises(BackendUnavailable):
        await executing
    assert cleaned == []
    left = await PostgresRuns(other).get(ROW.id)
    assert left is not None
    assert left.status == "running"
    assert [event.type for event in await runs.events(ROW.id)] == []
