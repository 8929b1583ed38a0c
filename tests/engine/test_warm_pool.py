"""Warm sandboxes for one-shots: claimed once, clean, and never left behind."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from sandkasten.engine.oneshot import warm_pool
from sandkasten.errors import QuotaExceeded, SandboxLost, SessionNotFound
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from tests.engine.injections import World
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def long_times(monkeypatch):
    """A busy machine may need a minute for what takes a second."""
    for name in ("HOT_S", "KEPT_S", "LEASE_S"):
        monkeypatch.setattr(warm_pool, name, 90.0)


@pytest.fixture
async def world():
    one = World(spares=True)
    yield one
    await one.engine.aclose()
    assert await one.left() == ([], [])


async def sh(world: World, code: str = "true", timeout_s: float | None = None, **options):
    request = RunRequest(
        code, runtime="sh", timeout_seconds=timeout_s, options=SandboxOptions(**options)
    )
    return await world.engine.run(request)


async def rows(world: World, acquired: str = "spare") -> list[str]:
    return [one.id for one in await world.store.list() if one.acquired == acquired]


async def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := await condition()):
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.005)
    return found


async def spare_of(world: World) -> str:
    """Return the id of the one warm sandbox once it is running."""

    async def ready() -> list[str]:
        return [
            one.id
            for one in await world.store.list()
            if one.acquired == "spare" and one.state.value == "running"
        ]

    (one,) = await until(ready)
    # The task that made it has ended, too.
    await asyncio.sleep(0.01)
    return one


async def test_a_single_run_keeps_no_warm_sandbox(world):
    await sh(world)
    await asyncio.sleep(0.05)
    assert await world.left() == ([], [])


@pytest.mark.promise("P17")
async def test_after_two_equal_runs_the_next_finds_a_warm_sandbox(world):
    await sh(world)
    await sh(world)
    spare = await spare_of(world)
    assert world.backend.created == 3
    result = await sh(world, "echo hi", timeout_s=7)
    assert (result.sandbox_id, result.stdout) == (spare, b"hi\n")
    assert result.limits["timeout_seconds"] == 7
    assert world.events.names().count("sandbox.claimed") == 1
    assert await spare_of(world) != spare


async def test_a_claimed_warm_sandbox_is_described_as_that_of_its_run(world):
    await sh(world)
    await sh(world)
    spare = await spare_of(world)
    running = asyncio.create_task(sh(world, "sleep 600", env={}, timeout_s=100))
    await until(lambda: rows(world, "pool"))
    (info,) = await world.engine.list()
    assert (info.id, info.acquire_source, info.acquire_detail) == (spare, "pool", "")
    assert info.labels == {"sandkasten.oneshot": "sh"}
    assert (info.lifetime_s, info.idle_timeout_s) == (400, 300)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_claimed_warm_sandbox_has_the_lease_of_its_run(monkeypatch):
    # A busy machine may need all of it before the claim: then a longer one.
    for lease_s in (1.0, 8.0, 25.0):
        monkeypatch.setattr(warm_pool, "LEASE_S", lease_s)
        world = World(spares=True)
        await sh(world)
        await sh(world)
        spare = await spare_of(world)
        result = await sh(world, f"sleep {lease_s + 0.2}; echo lived")
        await world.engine.aclose()
        if result.sandbox_id == spare:
            break
    assert (result.sandbox_id, result.stdout) == (spare, b"lived\n")


async def test_two_runs_far_apart_keep_no_warm_sandbox(world):
    await sh(world)
    world.clock.ahead_s += warm_pool.HOT_S + 1
    await sh(world)
    await asyncio.sleep(0.05)
    assert await world.left() == ([], [])


@pytest.mark.promise("P17")
@pytest.mark.slow
async def test_fifty_concurrent_runs_never_share_a_warm_sandbox(world):
    await sh(world)
    await sh(world)
    for _ in range(3):
        results = await asyncio.gather(
            *(sh(world, f"ls; echo {i} > x; cat x; ls /tmp; echo > /tmp/x") for i in range(50))
        )
        assert [r.stdout for r in results] == [f"main.sh\n{i}\n".encode() for i in range(50)]
        ids = [r.sandbox_id for r in results]
        assert len(set(ids)) == 50
        assert len(await rows(world)) <= 1
        spare = await spare_of(world)
        assert spare not in ids
    assert world.events.names().count("sandbox.claimed") >= 3


async def test_nothing_of_one_run_reaches_the_next(world):
    code = "cat a /tmp/b ~/c; echo $LEFT; echo x > a; echo y > /tmp/b; echo z > ~/c; export LEFT=1"
    for _ in range(5):
        assert (await sh(world, code)).stdout == b"\n"
    assert "sandbox.claimed" in world.events.names()


@pytest.mark.promise("P17")
async def test_a_run_with_another_environment_or_limit_does_not_get_the_warm_sandbox(world):
    await sh(world, env={"A": "1"})
    await sh(world, env={"A": "1"})
    spare = await spare_of(world)
    others: list[dict] = [
        {"env": {"A": "2"}},
        {"env": {}},
        {"env": {"A": "1"}, "limits": {"mem_limit_mb": 64}},
        {"env": {"A": "1"}, "image": "python"},
    ]
    for other in others:
        result = await sh(world, "echo $A", **other)
        assert result.sandbox_id != spare
    result = await sh(world, "echo $A", env={"A": "1"})
    assert (result.sandbox_id, result.stdout) == (spare, b"1\n")


@pytest.mark.promise("P17")
async def test_a_run_with_a_named_workspace_keeps_no_warm_sandbox(world):
    for _ in range(3):
        await sh(world, workspace_id="kept")
    await asyncio.sleep(0.05)
    assert world.backend.created == 3
    assert await world.left() == ([], [])


@pytest.mark.promise("P17")
async def test_a_warm_sandbox_is_unlisted_and_can_be_removed(world):
    await sh(world)
    await sh(world)
    spare = await spare_of(world)
    assert await world.engine.list() == []
    (info,) = await world.engine.list(all=True)
    assert (info.id, info.acquire_source) == (spare, "pool")
    assert "one-shot" in info.acquire_detail
    for engine in (world.engine, world.another()):
        with pytest.raises(SessionNotFound):
            await engine.exec(spare, ExecRequest(("sh", "-c", "echo > /tmp/left")))
        with pytest.raises(SessionNotFound):
            await engine.files.write(spare, "left", b"")
    other = world.another()
    await other.destroy(spare)
    result = await sh(world, "echo $?")
    assert result.ok
    assert result.sandbox_id != spare
    assert world.engine._handles.peek(spare) is None


async def test_a_warm_sandbox_can_be_used_by_its_id_once_it_is_claimed(world):
    await sh(world)
    await sh(world)
    spare = await spare_of(world)
    other = world.another()
    request = ExecRequest(("echo", "mine"))
    with pytest.raises(SessionNotFound):
        await other.exec(spare, request)
    running = asyncio.create_task(sh(world, "sleep 600"))
    await until(lambda: rows(world, "pool"))
    assert (await other.exec(spare, request)).stdout == b"mine\n"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await other.aclose()


async def test_a_warm_sandbox_that_is_being_removed_is_not_claimed(world):
    await sh(world)
    await sh(world)
    spare = await spare_of(world)
    row = await world.store.get(spare)
    await world.store.put(replace(row, state=State.DESTROYING))
    assert (await sh(world)).sandbox_id != spare
    spare = await spare_of(world)
    async with world.store.lock(spare):
        assert (await sh(world)).sandbox_id != spare


@pytest.mark.promise("P17")
async def test_a_killed_warm_sandbox_is_replaced_silently(world):
    await sh(world)
    await sh(world)
    spare = await spare_of(world)
    await world.backend.cells[spare].real.crash()
    result = await sh(world, "echo fine")
    assert (result.ok, result.stdout) == (True, b"fine\n")
    assert result.sandbox_id != spare
    assert await spare_of(world) != spare
    assert "sandbox.cleanup_failed" not in world.events.names()


@pytest.mark.promise("P17")
async def test_a_warm_sandbox_that_dies_during_its_claim_is_replaced_silently(world, monkeypatch):
    await sh(world)
    await sh(world)
    spare = await spare_of(world)
    handle = world.engine._handles.peek(spare)
    call = handle.channel.call

    async def dying(verb, *args, **more):
        assert verb == "lease"
        await world.backend.cells[spare].real.crash()
        return await call(verb, *args, **more)

    handle.channel.call = dying
    result = await sh(world, "echo fine")
    assert (result.stdout, result.sandbox_id != spare) == (b"fine\n", True)


async def test_a_run_waits_for_a_warm_sandbox_that_is_being_created(world):
    await sh(world)
    gate = asyncio.Event()

    async def slow() -> None:
        if world.backend.created == 3:
            await gate.wait()

    world.backend.gate.before_create = slow
    await sh(world)
    running = asyncio.create_task(sh(world, "echo late"))
    await asyncio.sleep(0.05)
    assert not running.done()
    (spare,) = await until(lambda: rows(world))
    gate.set()
    assert (await running).sandbox_id == spare


async def test_a_run_cancelled_while_waiting_leaves_nothing(world):
    await sh(world)
    gate = asyncio.Event()

    async def slow() -> None:
        if world.backend.created == 3:
            await gate.wait()

    world.backend.gate.before_create = slow
    await sh(world)
    running = asyncio.create_task(sh(world))
    await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.set()

    async def gone() -> bool:
        return await world.left() == ([], [])

    await until(gone)


@pytest.mark.promise("P17")
async def test_a_warm_sandbox_that_cannot_be_created_fails_no_run(world):
    await sh(world)

    async def full() -> None:
        if world.backend.created == 3:
            raise QuotaExceeded("no room", hint="make room")

    world.backend.gate.before_create = full
    await sh(world)
    for _ in range(3):
        result = await sh(world, "echo fine")
        assert result.stdout == b"fine\n"
    assert world.backend.created == 6
    assert world.events.names().count("sandbox.spare_failed") == 1
    assert "sandbox.create_failed" not in world.events.names()
    # Later it is tried again.
    world.clock.ahead_s += warm_pool.BACKOFF_S + 1
    await sh(world)
    await sh(world)
    assert await spare_of(world)


async def test_a_run_waiting_for_a_failed_warm_sandbox_creates_its_own(world):
    await sh(world)
    gate = asyncio.Event()

    async def failing() -> None:
        if world.backend.created == 3:
            await gate.wait()
            raise SandboxLost("it did not come up")

    world.backend.gate.before_create = failing
    await sh(world)
    running = asyncio.create_task(sh(world, "echo own"))
    await asyncio.sleep(0.02)
    gate.set()
    assert (await running).stdout == b"own\n"


@pytest.mark.promise("P17")
async def test_an_unclaimed_warm_sandbox_is_removed(world, monkeypatch):
    monkeypatch.setattr(warm_pool, "KEPT_S", 0.1)
    await sh(world)
    await sh(world)

    # It may be gone again before anybody sees it.
    async def gone() -> bool:
        return world.backend.created == 3 and await world.left() == ([], [])

    await until(gone)
    assert world.engine._handles._open == {}


async def test_closing_removes_ready_and_unfinished_warm_sandboxes(world):
    await sh(world)
    await sh(world)
    await spare_of(world)
    await world.engine.aclose()
    assert await world.left() == ([], [])
    second = World(spares=True)
    await sh(second)

    async def stuck() -> None:
        if second.backend.created == 3:
            await asyncio.sleep(600)

    second.backend.gate.before_create = stuck
    await sh(second)
    await asyncio.sleep(0.02)
    await second.engine.aclose()
    assert await second.left() == ([], [])
    await sh(second)
    await sh(second)
    await second.engine.aclose()
    assert await second.left() == ([], [])


async def test_closing_after_every_task_was_cancelled_leaves_nothing(world):
    """As at the end of a loop: tasks are cancelled first, then the engine is closed."""
    await sh(world)
    await sh(world)
    await spare_of(world)
    running = asyncio.create_task(sh(world))
    await asyncio.sleep(0)
    current = asyncio.current_task()
    await asyncio.sleep(0.001)
    kept = [t for t in asyncio.all_tasks() if t is not current and "Spares" in repr(t.get_coro())]
    for task in (*kept, running):
        task.cancel()
    await asyncio.gather(*kept, running, return_exceptions=True)
    await world.engine.aclose()
    assert await world.left() == ([], [])


async def test_the_warm_sandbox_of_a_dead_process_is_swept_at_once(world):
    await sh(world)
    await sh(world)
    spare = await spare_of(world)
    other = world.another()
    assert (await other.sweep()).expired == ()
    row = await world.store.get(spare)
    await world.store.put(replace(row, owner_start=row.owner_start + 1))
    assert (await other._reaper.sweep(quick=True)).expired == (spare,)
    assert await world.left() == ([], [])


async def test_the_number_of_warm_kinds_is_bounded(world):
    for i in range(20):
        await sh(world, env={"A": str(i)})
        await sh(world, env={"A": str(i)})

    async def as_many_as_may_be() -> bool:
        return len(await rows(world)) == warm_pool.MAX_KINDS

    await until(as_many_as_may_be)
    await asyncio.sleep(0.05)
    assert await as_many_as_may_be()


async def test_without_the_setting_no_warm_sandbox_is_kept(world):
    plain = World()
    for _ in range(4):
        await sh(plain)
    assert plain.backend.created == 4
    assert await plain.left() == ([], [])
    await plain.engine.aclose()
