"""A backend whose engine is unavailable, hangs or has lost its state.

A missing answer says nothing about a sandbox. Nothing is marked lost, crashed or destroyed, nothing
is removed, other backends do not wait, and everything works again when the engine is back.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandkasten.errors import BackendUnavailable, NotFound, SessionExpired
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, Recovered
from sandkasten_runtime.engine import handles
from sandkasten_runtime.engine.lifecycle import end_watch, sandboxes
from sandkasten_runtime.engine.placement import backend_health
from tests.engine.injections import GO, UNTIL_GO
from tests.engine.test_journal import until
from tests.engine.unavailable_backend import HINT, FarWorld

pytestmark = pytest.mark.anyio

FAR = CreateRequest(SandboxOptions(backend="docker"))
RUNS = "running/running"


@pytest.fixture
async def world(monkeypatch):
    monkeypatch.setattr(end_watch, "ROUND_S", 0.02)
    monkeypatch.setattr(end_watch, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(backend_health, "QUIET_S", 0.01)
    one = FarWorld()
    turn = one.far.turn

    async def turn_and_wait(mode) -> None:
        """Switch the engine; a hanging one is abandoned soon, a slow one is waited for."""
        soon = mode == "hanging"
        for module in (backend_health, handles):
            monkeypatch.setattr(module, "LOOK_TIMEOUT_S", 0.1 if soon else 5.0)
        monkeypatch.setattr(handles, "ATTACH_TIMEOUT_S", 0.3 if soon else 10.0)
        monkeypatch.setattr(sandboxes, "DESTROY_TIMEOUT_S", 0.3 if soon else 20.0)
        monkeypatch.setattr(backend_health, "LIST_TIMEOUT_S", 0.3 if soon else 10.0)
        await turn(mode)

    monkeypatch.setattr(one.far, "turn", turn_and_wait)
    yield one
    await one.far.turn("there")
    await one.engine.aclose()
    for backend in (one.far.real, one.near):
        for the_id in await backend.owned():
            await backend.discard(the_id)


async def gone(world, the_id) -> None:
    async def over() -> bool:
        return await world.store.get(the_id) is None

    await until(over)


@pytest.mark.promise("P57")
@pytest.mark.parametrize("mode", ["away", "hanging"])
async def test_requests_fail_as_unavailable_and_work_when_the_backend_is_back(world, mode):
    engine = world.engine
    the_id = (await engine.create(FAR)).id
    await engine.exec(the_id, ExecRequest("cd /tmp; X=1"))
    await world.far.turn(mode)
    for refused in (
        engine.exec(the_id, ExecRequest("true")),
        engine.exec_start(the_id, ExecRequest(("true",))),
        engine.files.read(the_id, "/workspace/x"),
        engine.files.stat(the_id, "/workspace"),
        engine.stats(the_id),
    ):
        with pytest.raises(BackendUnavailable) as error:
            await refused
        assert error.value.retryable
        assert error.value.hint
        if mode == "away":
            assert error.value.hint == HINT
    assert await world.state(the_id) == RUNS
    await world.far.turn("there")
    result = await engine.exec(the_id, ExecRequest("echo $X; pwd"))
    assert result.stdout == b"1\n/tmp\n"
    assert "sandbox.crashed" not in world.events.names()


@pytest.mark.parametrize("mode", ["away", "hanging"])
async def test_an_unconnected_process_gets_the_same_error(world, mode):
    the_id = (await world.engine.create(FAR)).id
    other = world.another()
    await world.far.turn(mode)
    with pytest.raises(BackendUnavailable):
        await other.exec(the_id, ExecRequest("true"))
    await world.far.turn("there")
    assert (await other.exec(the_id, ExecRequest("echo ok"))).stdout == b"ok\n"
    await other.aclose()


@pytest.mark.promise("P57")
async def test_an_engine_that_stops_between_dial_and_hello_ends_no_session(world, monkeypatch):
    the_id = (await world.engine.create(FAR)).id
    cell = world.engine._handles.peek(the_id).cell
    await world.far.turn("away")
    await world.far.turn("there")
    dial = type(cell).dial

    async def cut(self):
        stream = await dial(self)
        await world.far.turn("away")
        return stream

    monkeypatch.setattr(type(cell), "dial", cut)
    with pytest.raises(BackendUnavailable):
        await world.engine.exec(the_id, ExecRequest("true"))
    assert await world.state(the_id) == RUNS


@pytest.mark.promise("P57")
async def test_commands_in_progress_when_the_engine_stops_are_not_lost(world):
    engine = world.engine
    the_id = (await engine.create(FAR)).id
    chunks = engine.exec_stream(the_id, ExecRequest(f"echo a; {UNTIL_GO}; echo b"))
    assert (await anext(chunks)).data == b"a\n"
    waiting = asyncio.create_task(engine.files.read(the_id, "/workspace/none"))
    await world.far.turn("away")
    with pytest.raises(BackendUnavailable):
        await anext(chunks)
    with pytest.raises(BackendUnavailable):
        await waiting
    await world.far.turn("there")
    await engine.files.write(the_id, GO, b"")

    async def ended() -> bool:
        (row,) = await world.journal.execs(the_id)
        return row.status == "completed"

    await until(ended)
    (known,) = await engine.execs(the_id)
    assert (await engine.exec_get(the_id, known.exec_id)).stdout == b"a\nb\n"


async def test_a_cut_connection_to_a_live_sandbox_loses_nothing(world):
    engine = world.engine
    the_id = (await engine.create(FAR)).id
    await engine.exec_start(the_id, ExecRequest(("sleep", "60")))
    (running,) = await engine.execs(the_id)
    waiting = asyncio.create_task(engine.exec_get(the_id, running.exec_id, wait_s=60))
    await asyncio.sleep(0.2)
    for stream in world.far.streams:
        await stream.aclose()
    with pytest.raises(BackendUnavailable, match="was cut"):
        await waiting
    assert (await engine.exec_get(the_id, running.exec_id)).status == "running"


@pytest.mark.promise("P57")
@pytest.mark.parametrize("mode", ["away", "hanging"])
async def test_a_destroy_is_refused_and_finished_when_the_backend_is_back(world, mode):
    await world.engine.recover()
    the_id = (await world.engine.create(FAR)).id
    await world.far.turn(mode)
    with pytest.raises(BackendUnavailable) as error:
        await world.engine.destroy(the_id)
    assert "it is marked" in error.value.hint
    assert await world.state(the_id) == "destroying/running"
    assert (await world.engine.get(the_id)).status == "destroying"
    with pytest.raises(NotFound):
        await world.engine.exec(the_id, ExecRequest("true"))
    await asyncio.sleep(0.2)
    assert await world.state(the_id) == "destroying/running"
    await world.far.turn("there")
    await gone(world, the_id)
    assert await world.state(the_id) == "None/destroyed"
    assert list(await world.far.real.owned()) == []


async def test_a_process_without_a_watch_finishes_a_destroy_in_its_sweep(world):
    the_id = (await world.engine.create(FAR)).id
    await world.far.turn("away")
    with pytest.raises(BackendUnavailable):
        await world.engine.destroy(the_id)
    assert the_id in (await world.engine.sweep()).failed
    await world.far.turn("there")
    await asyncio.sleep(0.02)
    assert (await world.engine.sweep()).finished == (the_id,)
    assert list(await world.far.real.owned()) == []


@pytest.mark.promise("P57")
async def test_a_lifetime_that_ends_meanwhile_is_an_expiry_and_leftovers_are_removed(world):
    the_id = (
        await world.engine.create(
            CreateRequest(SandboxOptions(backend="docker", lifetime_seconds=60))
        )
    ).id
    await world.far.turn("away")
    world.clock.ahead_s = 100
    assert not await world.engine._reaper.bury(the_id)
    assert await world.state(the_id) == "destroying/expired"
    assert the_id in (await world.engine.sweep()).failed
    await world.far.turn("there")
    world.clock.ahead_s = 200
    await world.engine.sweep()
    assert await world.state(the_id) == "None/expired"
    assert list(await world.far.real.owned()) == []


@pytest.mark.promise("P57")
async def test_a_sandbox_that_ended_itself_meanwhile_is_not_crashed(world):
    await world.engine.recover()
    the_id = (
        await world.engine.create(CreateRequest(SandboxOptions(backend="docker", ttl_seconds=60)))
    ).id
    await world.far.turn("away")
    await asyncio.sleep(0.1)
    world.clock.ahead_s = 61
    await world.far.real.discard(the_id)
    await world.far.turn("there")
    await gone(world, the_id)
    assert await world.state(the_id) == "None/expired"


@pytest.mark.promise("P57")
async def test_a_daemon_started_meanwhile_serves_other_backends_and_recovers_sessions_later(world):
    far = (await world.engine.create(FAR)).id
    near = (await world.engine.create(CreateRequest())).id
    started = await world.engine.exec_start(far, ExecRequest("sleep 0.2; echo late"))
    await world.engine.aclose()
    await world.far.turn("away")
    engine = world.engine = world.another()
    assert await engine.recover() == Recovered(kept=1)
    assert (await engine.exec(near, ExecRequest("echo ok"))).stdout == b"ok\n"
    (silent,) = engine.degraded()
    assert (silent.details["backend"], silent.hint) == ("docker", HINT)
    assert await world.state(far) == RUNS
    await asyncio.sleep(0.1)
    await world.far.turn("there")

    async def followed() -> bool:
        row = await world.journal.exec(far, started.exec_id)
        return row.status == "completed" and engine.degraded() == []

    await until(followed)
    assert [one for one in world.events.names() if one.startswith("backend.")] == [
        "backend.away",
        "backend.back",
    ]


async def limited(world):
    """Return the handle of a sandbox whose tenant has a quota of its network."""
    the_id = (await world.engine.create(FAR)).id
    handle = world.engine._handles.peek(the_id)
    network = {"allow": ["a.test"]}
    handle.record = replace(handle.record, network=network, network_bytes_per_day=1)
    await world.store.put(handle.record)
    return handle


async def test_a_sandbox_with_many_updates_is_told_what_its_quota_leaves(world):
    the_id = (await limited(world)).record.id
    traffic = world.engine._watch._traffic
    async with world.store.lock(the_id, wait_s=1):
        telling = asyncio.create_task(traffic.round(await world.store.list(), 10.0))
        await asyncio.wait({telling}, timeout=0.2)
    await telling
    assert world.far.asked["change_network"] == 1


@pytest.mark.promise("P57")
async def test_the_watch_does_not_wait_for_counters_of_an_engine_that_hangs(world):
    near = (await world.engine.create(CreateRequest())).id
    handle = await limited(world)
    asked = asyncio.Event()

    async def hangs() -> None:
        asked.set()
        await asyncio.Event().wait()

    handle.cell.network_counts = hangs
    await world.engine.recover()
    await asked.wait()
    # Without a connection, only the rounds of the watch find its end.
    await world.engine._handles.forget(near)
    await (await world.near.attach(near)).crash()
    await gone(world, near)


@pytest.mark.parametrize("count", [1, 40])
async def test_a_start_does_not_wait_long_for_an_engine_that_hangs(world, count):
    """With any number of sessions: the first ones find out for all."""
    for _ in range(count):
        await world.engine.create(FAR)
    await world.engine.aclose()
    await world.far.turn("hanging")
    world.far.asked.clear()
    engine = world.engine = world.another()
    assert await engine.recover() == Recovered()
    # Pings do not depend on the number of sessions: they are repeated while the start waits.
    asked = world.far.asked
    assert sum(asked[verb] for verb in asked if verb != "ping") <= 12


@pytest.mark.promise("P57")
async def test_a_hanging_engine_is_queried_once_at_a_time_and_blocks_no_caller(world):
    await world.engine.recover()
    far = [(await world.engine.create(FAR)).id for _ in range(30)]
    near = (await world.engine.create(CreateRequest())).id
    await world.engine.aclose()
    engine = world.engine = world.another()
    await world.far.turn("hanging")
    await engine.recover()
    world.far.most = 0
    await (await world.near.attach(near)).crash()

    async def buried() -> bool:
        return await world.store.get(near) is None

    world.far.asked.clear()
    await until(buried)
    # Had it waited for them, every one of them would have been asked for.
    assert sum(world.far.asked.values()) < len(far)
    await asyncio.sleep(0.5)
    assert world.far.most <= 1
    for the_id in far:
        assert await world.state(the_id) == RUNS
    await world.far.turn("there")
    await until(lambda: _answers(engine))


async def _answers(engine) -> bool:
    return engine.degraded() == []


async def test_many_cut_connections_do_not_flood_the_engine(world):
    await world.engine.recover()
    for _ in range(30):
        await world.engine.create(FAR)
    world.far.most = 0
    await world.far.turn("hanging")
    await asyncio.sleep(0.5)
    assert world.far.most <= 5


@pytest.mark.promise("P57")
async def test_a_sweep_of_other_backends_continues(world):
    litter = new_sandbox_id()
    info = await world.engine.create(CreateRequest())
    record = await world.store.get(info.id)
    far = (await world.engine.create(FAR)).id
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import CellSpec

    await world.near.create(litter, CellSpec(image=Image("host")))
    for mode in ("away", "hanging"):
        await world.far.turn(mode)
        swept = await world.engine.sweep()
        assert far in swept.failed
        assert swept.orphans == ((litter,) if mode == "away" else ())
    assert await world.state(far) == RUNS
    assert record.state is State.RUNNING


async def test_a_list_may_take_longer_than_a_look_at_one_sandbox(world, monkeypatch):
    litter = new_sandbox_id()
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import CellSpec

    await world.far.real.create(litter, CellSpec(image=Image("host")))
    owned = world.far.owned

    async def in_pages():
        for _ in range(10):
            await asyncio.sleep(0)
        return await owned()

    monkeypatch.setattr(world.far, "owned", in_pages)
    monkeypatch.setattr(backend_health, "LOOK_TIMEOUT_S", 0.0)
    assert (await world.engine.sweep()).orphans == (litter,)
    assert world.engine.degraded() == []


async def test_an_unreadable_row_is_kept_while_its_backend_may_be_unavailable(world, monkeypatch):
    corrupt = new_sandbox_id()
    dropped: list[str] = []

    async def those():
        return [] if dropped else [corrupt]

    async def drop(the_id, record=None):
        dropped.append(the_id)

    monkeypatch.setattr(world.store, "corrupt", those)
    monkeypatch.setattr(world.store, "drop", drop)
    await world.far.turn("away")
    assert (await world.engine.sweep()).failed == (corrupt,)
    assert dropped == []
    await world.far.turn("there")
    await asyncio.sleep(0.02)
    assert (await world.engine.sweep()).corrupt == (corrupt,)


async def test_lists_show_the_last_known_state_and_mark_it(world):
    the_id = (await world.engine.create(FAR)).id
    near = (await world.engine.create(CreateRequest())).id
    for mode in ("away", "hanging"):
        await world.far.turn(mode)
        shown = {one.id: one for one in await world.engine.list()}
        assert shown[the_id].status == "running"
        assert "does not answer" in shown[the_id].warnings[-1]
        assert shown[near].warnings == ()
    await world.far.turn("there")
    await asyncio.sleep(0.02)
    assert (await world.engine.get(the_id)).warnings == ()


@pytest.mark.promise("P29")
async def test_failed_creates_leave_no_rows(world):
    await world.far.turn("away")
    for _ in range(3):
        with pytest.raises(BackendUnavailable) as error:
            await world.engine.create(FAR)
        assert error.value.hint == HINT
    assert await world.store.list() == []
    assert await world.journal.open_sessions() == []


async def test_a_returning_backend_is_noticed_without_any_of_its_sessions(world):
    await world.engine.recover()
    await world.far.turn("away")
    await world.engine.sweep()
    assert [one.details["backend"] for one in world.engine.degraded()] == ["docker"]
    await world.far.turn("there")
    await until(lambda: _answers(world.engine))


async def test_a_session_key_creates_no_second_sandbox_meanwhile(world):
    asked = CreateRequest(SandboxOptions(backend="docker"), session_key="k")
    the_id = (await world.engine.create(asked)).id
    await world.far.turn("away")
    with pytest.raises(BackendUnavailable):
        await world.engine.create(asked)
    await world.far.turn("there")
    await asyncio.sleep(0.02)
    again = await world.engine.create(asked)
    assert (again.id, again.created) == (the_id, False)


async def test_an_engine_that_lost_its_state_ends_only_its_own_sessions(world):
    await world.engine.recover()
    the_id = (await world.engine.create(FAR)).id
    near = (await world.engine.create(CreateRequest())).id
    await world.far.turn("forgetful")
    await gone(world, the_id)
    assert await world.state(the_id) == "None/crashed"
    with pytest.raises(SessionExpired):
        await world.engine.exec(the_id, ExecRequest("true"))
    assert (await world.engine.exec(near, ExecRequest("echo ok"))).stdout == b"ok\n"


async def test_a_backend_is_closed_with_the_engine(world):
    await world.engine.aclose()
    assert world.far.closed == 1
