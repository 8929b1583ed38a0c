"""Pausing in the ledger: what a paused row means, and what may change it.

The unisolated backend cannot pause; a row that says so stands for what another process did. Real
pauses are in tests/local/test_pausing.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandkasten.errors import Conflict, SessionNotFound, UnsupportedByBackend
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.lifecycle import State, is_there, may_move
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, Swept
from sandkasten_runtime.engine.lifecycle.pause import _IdleTracker

pytestmark = pytest.mark.anyio

UNKNOWN = "sbx_0123456789abcdef"


@pytest.fixture
async def paused(world, box):
    """The id of a sandbox that another process paused."""
    row = await world.store.get(box)
    assert row is not None
    await world.engine.aclose()
    await world.store.put(replace(row, state=State.PAUSED))
    return box


def test_a_paused_sandbox_can_be_resumed_or_destroyed():
    assert {s for s in State if may_move(State.PAUSED, s)} == {
        State.RUNNING,
        State.DESTROYING,
        State.LOST,
    }
    assert {s for s in State if may_move(s, State.PAUSED)} == {State.RUNNING}
    assert {s for s in State if is_there(s)} == {State.RUNNING, State.PAUSED}


@pytest.mark.promise("P05")
async def test_a_backend_that_cannot_pause_refuses_and_changes_nothing(world, engine, box):
    for verb in (engine.pause, engine.resume, engine.reclaim):
        with pytest.raises(UnsupportedByBackend) as refused:
            await verb(box)
        assert refused.value.hint
    assert (await engine.get(box)).status == "running"
    assert (await engine.exec(box, ExecRequest("echo ok"))).stdout == b"ok\n"


@pytest.mark.parametrize("verb", ["pause", "resume", "reclaim", "usage"])
async def test_an_unknown_sandbox_is_not_found(engine, verb):
    with pytest.raises(SessionNotFound):
        await getattr(engine, verb)(UNKNOWN)


async def test_work_on_a_paused_sandbox_is_a_conflict_with_a_hint(engine, paused):
    calls = [
        lambda: engine.exec(paused, ExecRequest("echo no")),
        lambda: engine.exec_start(paused, ExecRequest("echo no")),
        lambda: engine.execs(paused),
        lambda: engine.processes(paused),
        lambda: engine.files.read(paused, "x"),
        lambda: engine.files.write(paused, "x", b""),
    ]
    for call in calls:
        with pytest.raises(Conflict) as refused:
            await call()
        assert refused.value.message == f"sandbox {paused} is paused"
        assert refused.value.details["reason"] == "paused"
        assert "resume" in refused.value.hint


async def test_an_open_connection_does_not_bypass_a_pause(world, engine, box):
    """Pausing closes every connection; the next dial finds the paused row."""
    assert (await engine.exec(box, ExecRequest("echo ok"))).stdout == b"ok\n"
    row = await world.store.get(box)
    await world.store.put(replace(row, state=State.PAUSED))
    for stream in world.backend.cells[box].streams:
        await stream.aclose()
    assert await engine._handles.peek(box).channel.wait_closed(20)
    with pytest.raises(Conflict):
        await engine.exec(box, ExecRequest("echo no"))
    await world.store.put(row)
    assert (await engine.exec(box, ExecRequest("echo ok"))).stdout == b"ok\n"


async def test_stats_of_a_paused_sandbox_come_from_the_host(engine, paused):
    found = await engine.stats(paused)
    assert found.usage == await engine.usage(paused)
    assert (found.processes, found.running, found.shells, found.connections) == (None,) * 4
    assert found.disk == ()


async def test_a_paused_sandbox_is_listed_as_paused_and_ends_only_at_its_lifetime(engine, paused):
    info = await engine.get(paused)
    assert [one.status for one in await engine.list()] == [info.status] == ["paused"]
    assert info.expires_at == pytest.approx(info.created_at + info.lifetime_s, abs=2)


async def test_the_session_key_still_finds_a_paused_sandbox(world):
    info = await world.engine.create(CreateRequest(session_key="k"))
    row = await world.store.get(info.id)
    await world.store.put(replace(row, state=State.PAUSED))
    again = await world.engine.create(CreateRequest(session_key="k"))
    assert (again.id, again.created, again.status) == (info.id, False, "paused")


async def test_the_reaper_keeps_a_paused_sandbox_until_its_lifetime_ends(world, engine, paused):
    assert await engine.sweep() == Swept()
    row = await world.store.get(paused)
    world.clock.ahead_s = row.lifetime_s - 1
    assert await engine.sweep() == Swept()
    world.clock.ahead_s = row.lifetime_s + 1
    assert await engine.sweep() == Swept(expired=(paused,))
    assert await world.left() == ([], [])


async def test_the_reaper_gives_a_running_sandbox_time_to_end_itself(world, engine, box):
    row = await world.store.get(box)
    world.clock.ahead_s = row.lifetime_s + 1
    assert await engine.sweep() == Swept()


async def test_the_reaper_does_not_end_what_is_idle_by_the_ledger_alone(world, engine):
    info = await engine.create(CreateRequest(SandboxOptions(ttl_seconds=60, lifetime_seconds=3600)))
    started = await engine.exec_start(info.id, ExecRequest(("sleep", "30")))
    world.clock.ahead_s = 600
    assert await world.another().sweep() == Swept()
    assert (await engine.exec_get(info.id, started.exec_id)).status == "running"


async def test_destroy_works_on_a_paused_sandbox(world, engine, paused):
    await engine.destroy(paused)
    assert await world.left() == ([], [])


async def test_a_paused_sandbox_whose_cell_died_is_lost(world, engine, paused):
    await world.backend.cells[paused].real.crash()
    assert (await engine.get(paused)).status == "lost"


async def test_measuring_does_not_count_as_activity(world):
    engine = world.engine
    info = await engine.create(CreateRequest(SandboxOptions(ttl_seconds=60)))
    world.clock.ahead_s = 30
    left = (await engine.get(info.id)).expires_at
    await engine.usage(info.id)
    assert (await engine.get(info.id)).expires_at == pytest.approx(left, abs=2)
    # The opposite, so that the comparison can fail.
    await engine.stats(info.id)
    assert (await engine.get(info.id)).expires_at == pytest.approx(left + 30, abs=2)


async def test_usage_opens_no_connection(world, box):
    other = world.another()
    assert (await other.usage(box)).pids_limit == 256
    assert len(world.backend.cells[box].streams) == 1
    await other.aclose()


def test_idleness_is_detected_by_the_kernels_counters_once_per_idle_period():
    rest = _IdleTracker(10.0)
    assert not rest.due("a", 1_000_000, 0.0)
    assert not rest.due("a", 1_000_500, 9.0)
    assert rest.due("a", 1_001_000, 11.0)
    assert not rest.due("a", 1_001_000, 30.0)
    # Half a second of work in one, and the rest begins anew.
    assert not rest.due("a", 1_501_000, 31.0)
    assert not rest.due("a", 1_501_000, 40.0)
    assert rest.due("a", 1_501_000, 41.5)


def test_idleness_is_not_reported_without_counters_or_without_the_setting():
    assert not _IdleTracker(None).wanted
    rest = _IdleTracker(1.0)
    assert not rest.due("a", None, 0.0)
    assert not rest.due("a", None, 100.0)
    rest.due("b", 0, 0.0)
    rest.forget(set())
    assert not rest.due("b", 0, 100.0)
