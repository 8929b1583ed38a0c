"""Races of leases, reapers, keys and commands: nothing is reaped or created wrongly."""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest

from sandkasten.errors import SandboxLost, SessionExpired
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from tests.engine.injections import GO, UNTIL_GO, World
from tests.engine.test_journal import until
from tests.patience import PATIENCE_S
from tests.store.memory_store import MemoryJournal

pytestmark = pytest.mark.anyio


RACES = 10_000 if os.environ.get("TEST_SANDKASTEN_LONG") == "1" else 80


@pytest.mark.promise("P16")
async def test_a_hundred_opens_of_one_key_create_one_sandbox(tmp_path):
    world = World(store=DirectoryStore(tmp_path), journal=MemoryJournal())
    engines = [world.engine, *(world.another() for _ in range(3))]
    request = CreateRequest(session_key="workflow:1:main", tenant="acme")
    infos = await asyncio.gather(*(engines[n % 4].create(request) for n in range(100)))
    assert len({info.id for info in infos}) == 1
    assert sum(info.created for info in infos) == 1
    assert world.backend.created == 1
    assert len(await world.journal.sessions(None)) == 1
    await world.engine.destroy(infos[0].id)
    for one in engines:
        await one.aclose()


async def lease(engine, the_id: str, idle_s: float) -> None:
    """Shorter than a request may ask for, or the races would take hours."""
    _, channel = await engine._handles.connect(the_id)
    await channel.call("lease", {"idle_ms": int(idle_s * 1000), "lifetime_ms": 3_600_000})


@pytest.mark.promise("P30")
@pytest.mark.slow
async def test_a_command_at_the_end_of_the_lease_runs_completely_or_not_at_all():
    """`RACES` times a command arrives at about the end of the idle time."""
    world = World(journal=MemoryJournal())
    await world.engine.recover()
    rolls = random.Random(7)
    ran = missed = 0
    ends: list[object] = []
    idle_s = 0.01

    async def race() -> None:
        nonlocal ran, missed, idle_s
        info = await world.engine.create(CreateRequest())
        await lease(world.engine, info.id, idle_s)
        # However busy the machine is, about half of them come too late: a longer time leaves more
        # room for what the machine does in between.
        idle_s = min(1.0, max(0.005, idle_s * (1.1 if missed > ran else 0.9)))
        await asyncio.sleep(max(0.0, rolls.gauss(idle_s * 0.8, idle_s * 0.3)))
        try:
            # Longer than the idle time: work is no idleness.
            result = await world.engine.exec(
                info.id, ExecRequest(("sh", "-c", f"sleep {2 * idle_s:.3f}; echo y"))
            )
        except (SessionExpired, SandboxLost) as exc:
            ends.append(exc.details["status"])
            missed += 1
        else:
            # What was accepted ran to its end, and its end was activity.
            assert (result.status, result.stdout, result.exit_code) == ("completed", b"y\n", 0)
            ran += 1
            row = await world.journal.exec(info.id, result.exec_id)
            assert row.status == "completed"
        finally:
            # Only the fake keeps them, for tests that look into them.
            del world.backend.cells[info.id]

    async def sweeps() -> None:
        while True:
            await world.engine.sweep()
            await asyncio.sleep(0.02)

    sweeping = asyncio.create_task(sweeps())
    for _ in range(RACES // 20):
        await asyncio.gather(*(race() for _ in range(20)))
    assert ran + missed == RACES // 20 * 20
    assert set(ends) == {"expired"}
    # Both happen, or it was no race.
    assert ran > RACES // 20
    assert missed > RACES // 20

    async def all_over() -> bool:
        return await world.left() == ([], [])

    await until(all_over)
    # Not earlier: a sweep that is cancelled leaves its removals to the next one.
    sweeping.cancel()
    statuses = {row.status for row in await world.journal.sessions(None, limit=20_000)}
    assert statuses == {"expired"}
    await world.engine.aclose()


async def test_activity_keeps_a_sandbox_and_sweeps_do_not_touch_it():
    """Used repeatedly within its idle time, it lives for many times that."""
    # A machine that did not get to ask for that long proves nothing: once more, with more time.
    for idle_s in (0.25, 1.0, 4.0):
        if await _lived(idle_s):
            return
    pytest.fail("nothing was asked within 4 s")


async def _lived(idle_s: float) -> bool:
    """Return whether all of them survived; False where one ended without a request."""
    world = World(journal=MemoryJournal())
    await world.engine.recover()
    other = world.another()
    infos = [await world.engine.create(CreateRequest()) for _ in range(4)]
    asked: dict[str, float] = {}
    for info in infos:
        asked[info.id] = time.monotonic()
        await lease(world.engine, info.id, idle_s)

    late = False
    answered = dict.fromkeys(asked, 0)

    async def work(the_id: str) -> None:
        nonlocal late
        # Until all have had enough: one that rested before the others would end.
        while not late and min(answered.values()) < RACES // 40:
            before, asked[the_id] = asked[the_id], time.monotonic()
            try:
                result = await world.engine.exec(the_id, ExecRequest("echo ok"))
            except SessionExpired:
                assert time.monotonic() - before >= idle_s
                late = True
                return
            assert result.stdout == b"ok\n"
            answered[the_id] += 1
            await asyncio.sleep(random.random() * idle_s / 5)

    async def sweeps(engine) -> None:
        while True:
            swept = await engine.sweep()
            assert late or swept.expired == swept.dead == swept.finished == ()
            await engine._watch.round()
            await asyncio.sleep(0)

    sweeping = [asyncio.create_task(sweeps(one)) for one in (world.engine, other)]
    await asyncio.gather(*(work(info.id) for info in infos))
    failed = any(task.done() for task in sweeping)
    for task in sweeping:
        task.cancel()
    await asyncio.gather(*sweeping, return_exceptions=True)
    statuses = {row.status for row in await world.journal.sessions(None)}
    late = late or time.monotonic() - min(asked.values()) >= idle_s
    assert late or (failed, statuses) == (False, {"running"})
    await other.aclose()
    await world.engine.aclose()
    return not late


async def test_running_work_prevents_the_idle_timeout():
    world = World(journal=MemoryJournal())
    await world.engine.recover()
    info = await world.engine.create(CreateRequest())
    request = ExecRequest(("sh", "-c", f"{UNTIL_GO}; echo y"))
    started = await world.engine.exec_start(info.id, request)
    await lease(world.engine, info.id, 0.02)
    await world.engine.aclose()
    after = world.another()
    await after.recover()
    for _ in range(5):
        await asyncio.sleep(0.1)
        assert (await after.sweep()).dead == ()
    # From here on nothing else keeps it until it is asked.
    await lease(after, info.id, 600)
    await after.files.write(info.id, GO, b"")
    result = await after.exec_get(info.id, started.exec_id, wait_s=PATIENCE_S)
    assert (result.status, result.stdout) == ("completed", b"y\n")
    await after.aclose()
    for the_id in await world.backend.real.owned():
        await world.backend.real.discard(the_id)


async def test_a_cancelled_command_closes_everything_although_its_last_sweep_is_slow(
    world, box, monkeypatch
):
    engine = world.engine
    engine.sweep_soon()

    async def slow(*, quick: bool) -> None:
        await asyncio.Event().wait()

    async def command() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await engine.aclose()

    monkeypatch.setattr("sandkasten_runtime.engine.engine.SWEEP_AT_CLOSE_S", 0.05)
    monkeypatch.setattr(engine._reaper, "sweep", slow)
    assert engine._handles.connected(box)
    task = asyncio.create_task(command())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not engine._handles.connected(box)
