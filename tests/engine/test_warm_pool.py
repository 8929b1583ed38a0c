"""Warm sandboxes for sessions and one-shots: claimed once, clean, and never left behind."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from sandkasten.errors import InvalidRequest, QuotaExceeded, SandboxLost, SessionNotFound
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.pool.pool_kinds import PoolKind, kind_digest, parse_pool_kind
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.pool import spare_claims, warm_pool
from sandkasten_runtime.engine.pool.pool_rules import LIFETIME_S, PoolRules
from tests.engine.injections import World
from tests.patience import DEADLINES_S, PATIENCE_S

pytestmark = pytest.mark.anyio


# A busy machine may need a minute for what takes a second.
ONE = PoolRules(max_per_kind=1, idle_s=90.0)


@pytest.fixture
async def world():
    one = World(pool=ONE)
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


async def until(condition, patience_s: float = PATIENCE_S):
    deadline = time.monotonic() + patience_s
    while not (found := await condition()):
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.005)
    return found


async def heard(world: World, event: str) -> bool:
    return event in world.events.names()


async def spare_of(world: World, patience_s: float = PATIENCE_S) -> str:
    """Return the id of the one warm sandbox once it is running."""

    async def ready() -> list[str]:
        return [
            one.id
            for one in await world.store.list()
            if one.acquired == "spare" and one.state.value == "running"
        ]

    (one,) = await until(ready, patience_s)
    # The task that made it has ended, too.
    await asyncio.sleep(0.01)
    return one


async def test_a_single_run_keeps_no_warm_sandbox(world):
    await sh(world)
    await asyncio.sleep(0.05)
    assert await world.left() == ([], [])


@pytest.mark.promise("P17")
async def test_after_two_equal_runs_the_next_finds_a_warm_sandbox(world):
    first = await sh(world)
    await sh(world)
    spare = await spare_of(world)
    assert world.backend.created == 3
    result = await sh(world, "echo hi", timeout_s=7)
    assert (result.sandbox_id, result.stdout) == (spare, b"hi\n")
    assert (first.acquire_source, first.acquire_detail) == ("cold", "no sandbox ready")
    assert (result.acquire_source, result.acquire_detail) == ("pool", "")
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
        world = World(pool=replace(ONE, idle_s=lease_s / 1.5))
        monkeypatch.setattr(warm_pool, "LEASE_MARGIN_S", 0.0)
        await sh(world)
        await sh(world)
        spare = None
        with suppress(AssertionError):
            spare = await spare_of(world, patience_s=lease_s)
        result = await sh(world, f"sleep {lease_s + 0.2}; echo lived")
        await world.engine.aclose()
        if result.sandbox_id == spare:
            break
    assert (result.sandbox_id, result.stdout) == (spare, b"lived\n")


async def test_a_sandbox_is_made_when_a_run_ended_or_takes_long(world, monkeypatch):
    await sh(world)
    world.clock.ahead_s += 1
    monkeypatch.setattr(warm_pool, "_REFILL_DURING_RUN_S", 3600)
    running = asyncio.create_task(sh(world, "sleep 600"))
    await until(lambda: delayed(world))
    assert world.backend.created == 2
    running.cancel()
    await asyncio.wait({running})
    await spare_of(world)
    world.clock.ahead_s += 1
    monkeypatch.setattr(warm_pool, "_REFILL_DURING_RUN_S", 0.01)
    running = asyncio.create_task(sh(world, "sleep 600"))
    await until(lambda: rows(world, "pool"))
    await spare_of(world)
    running.cancel()
    await asyncio.wait({running})


async def delayed(world: World) -> bool:
    return world.engine._pool._delayed is not None


async def test_two_runs_far_apart_keep_no_warm_sandbox(world):
    await sh(world)
    world.clock.ahead_s += ONE.idle_s + 1
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


@pytest.mark.promise("P17", "P94")
async def test_the_environment_is_set_when_a_warm_sandbox_is_claimed(world):
    await sh(world, env={"A": "1"})
    await sh(world, env={"A": "1"})
    spare = await spare_of(world)
    result = await sh(world, "echo $A $B; env | grep -c ^A=", env={"B": "2", "A": "x y"})
    assert (result.sandbox_id, result.stdout) == (spare, b"x y 2\n1\n")
    spare = await spare_of(world)
    result = await sh(world, "echo [$A$B]")
    assert (result.sandbox_id, result.stdout) == (spare, b"[]\n")


@pytest.mark.promise("P17", "P94")
async def test_a_run_with_another_limit_or_name_does_not_get_the_warm_sandbox(world):
    await sh(world)
    await sh(world)
    spare = await spare_of(world)
    for other in ({"limits": {"mem_limit_mb": 64}}, {"hostname": "other"}):
        result = await sh(world, **other)
        assert result.sandbox_id != spare
    # An alias that means the same image is no difference, nor what only the engine enforces.
    aliased = await sh(world, image="python")
    assert aliased.sandbox_id == spare
    assert aliased.warnings == ("alias python (python:3.11-slim) resolved to the host image",)
    spare = await spare_of(world)
    assert (await sh(world, limits={"max_stdout_bytes": 5})).sandbox_id == spare


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
    assert info.acquire_detail == "kept ready for the next request"
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
async def test_a_warm_sandbox_that_dies_during_its_claim_is_replaced_silently(world):
    await sh(world)
    await sh(world)
    spare = await spare_of(world)
    handle = world.engine._handles.peek(spare)
    call = handle.channel.call

    async def dying(verb, *args, **more):
        assert (verb, args[0]["env"]) == ("lease", {})
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
    await until(lambda: rows(world))
    running = asyncio.create_task(sh(world, "echo late"))
    await asyncio.sleep(0.05)
    assert not running.done()
    (spare,) = await until(lambda: rows(world))
    gate.set()
    assert (await running).sandbox_id == spare


async def test_a_run_cancelled_while_waiting_leaves_the_sandbox_to_the_next(world):
    await sh(world)
    gate = asyncio.Event()

    async def slow() -> None:
        if world.backend.created == 3:
            await gate.wait()

    world.backend.gate.before_create = slow
    await sh(world)
    await until(lambda: rows(world))
    running = asyncio.create_task(sh(world))
    await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.set()
    spare = await spare_of(world)
    assert (await sh(world)).sandbox_id == spare


@pytest.mark.promise("P17")
async def test_a_warm_sandbox_that_cannot_be_created_fails_no_run(world):
    await sh(world)

    async def full() -> None:
        if world.backend.created == 3:
            raise QuotaExceeded("no room", hint="make room")

    world.backend.gate.before_create = full
    await sh(world)
    await until(lambda: heard(world, "sandbox.spare_failed"))
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
    await until(lambda: rows(world))
    running = asyncio.create_task(sh(world, "echo own"))
    await asyncio.sleep(0.02)
    gate.set()
    assert (await running).stdout == b"own\n"


@pytest.mark.promise("P17")
async def test_an_unclaimed_warm_sandbox_is_removed():
    # On a busy machine, two runs may be too far apart for a short time.
    for idle_s in DEADLINES_S:
        world = World(pool=replace(ONE, idle_s=idle_s))
        await sh(world)
        await sh(world)
        if world.engine._pool._refilling is not None:
            break
        await world.engine.aclose()

    # It may be gone again before anybody sees it.
    async def gone() -> bool:
        return world.backend.created == 3 and await world.left() == ([], [])

    await until(gone)
    assert world.engine._handles._open == {}
    await world.engine.aclose()


async def test_closing_removes_ready_and_unfinished_warm_sandboxes(world):
    await sh(world)
    await sh(world)
    await spare_of(world)
    await world.engine.aclose()
    assert await world.left() == ([], [])
    second = World(pool=ONE)
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
    kept = [t for t in asyncio.all_tasks() if t is not current and "WarmPool" in repr(t.get_coro())]
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
    for i in range(warm_pool.MAX_KINDS + 3):
        await sh(world, hostname=f"h{i}")
        await sh(world, hostname=f"h{i}")

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


async def create(world: World, quota: TenantQuota | None = None, **more):
    options = SandboxOptions(**{k: v for k, v in more.items() if k not in _REQUEST})
    request = {k: v for k, v in more.items() if k in _REQUEST}
    return await world.engine.create(CreateRequest(options, **request), quota)


_REQUEST = ("session_key", "tenant", "key_id")


@pytest.mark.promise("P94")
async def test_the_third_session_of_a_kind_comes_from_the_pool(world):
    for _ in range(2):
        info = await create(world)
        assert (info.acquire_source, info.acquire_detail) == ("cold", "no sandbox ready")
        await world.engine.destroy(info.id)
    spare = await spare_of(world)
    info = await create(
        world,
        session_key="mine",
        tenant="acme",
        labels={"a": "b"},
        env={"A": "1"},
        ttl_seconds=77,
        limits={"max_stdout_bytes": 5},
    )
    assert (info.id, info.created, info.acquire_source, info.acquire_detail) == (
        spare,
        True,
        "pool",
        "",
    )
    assert (info.session_key, info.tenant, dict(info.labels)) == ("mine", "acme", {"a": "b"})
    assert (info.env_names, info.idle_timeout_s) == (("A",), 77)
    assert info.limits.stdout_bytes == 5
    assert (await world.engine.exec(spare, ExecRequest("echo $A"))).stdout == b"1\n"
    # By its key it is found again, with the same description.
    again = await create(world, session_key="mine", tenant="acme")
    assert (again.id, again.created, again.acquire_source) == (spare, False, "pool")
    await world.engine.destroy(spare)


@pytest.mark.promise("P94")
async def test_a_cold_session_says_why(world):
    for _ in range(2):
        await world.engine.destroy((await create(world)).id)
    await spare_of(world)
    for options, why in (
        ({"workspace_id": "kept"}, "named workspace"),
        ({"limits": {"workspace_mb": 64}}, "limits differ: workspace_mb"),
        ({"limits": {"mem_limit_mb": 64}}, "limits differ: mem_limit_mb"),
        ({"hostname": "other"}, "no sandbox ready"),
    ):
        info = await create(world, **options)
        assert (info.acquire_source, info.acquire_detail) == ("cold", why)
        assert (await world.engine.get(info.id)).acquire_detail == why
        await world.engine.destroy(info.id)
    off = World()
    info = await create(off)
    assert info.acquire_detail == "the warm pool is off"
    await off.engine.destroy(info.id)
    await off.engine.aclose()


@pytest.mark.promise("P94")
async def test_a_burst_keeps_as_many_ready_as_it_needs():
    world = World(pool=PoolRules(max_per_kind=3, idle_s=90.0))
    for info in await asyncio.gather(*(create(world) for _ in range(8))):
        await world.engine.destroy(info.id)

    async def three() -> bool:
        return len([one for one in await world.store.list() if one.state is State.RUNNING]) == 3

    await until(three)
    await asyncio.sleep(0.02)
    found = await asyncio.gather(*(create(world) for _ in range(3)))
    assert [info.acquire_source for info in found] == ["pool"] * 3
    assert len({info.id for info in found}) == 3
    for info in found:
        await world.engine.destroy(info.id)
    await world.engine.aclose()
    assert await world.left() == ([], [])


@pytest.mark.promise("P94")
async def test_a_quota_counts_claimed_sandboxes_and_not_the_pool(world):
    for _ in range(2):
        await world.engine.destroy((await create(world)).id)
    spare = await spare_of(world)
    none, one = TenantQuota(max_sessions=0), TenantQuota(max_sessions=1)
    with pytest.raises(QuotaExceeded):
        await create(world, none, tenant="acme")
    info = await create(world, one, tenant="acme")
    assert info.id == spare
    await spare_of(world)
    with pytest.raises(QuotaExceeded):
        await create(world, one, tenant="acme")
    # The refused request took nothing from the pool.
    other = await create(world, one, tenant="other")
    assert other.acquire_source == "pool"
    for the_id in (info.id, other.id):
        await world.engine.destroy(the_id)


@pytest.mark.promise("P94")
async def test_a_daemon_keeps_listed_kinds_ready_from_its_start():
    rules = PoolRules(idle_s=0.2, kinds=(PoolKind(SandboxOptions(), ready=2),))
    world = World(pool=rules)

    async def two() -> bool:
        return len([one for one in await world.store.list() if one.state is State.RUNNING]) == 2

    await world.engine.recover()
    await until(two)
    # They are kept longer than those of demand, and their lease is renewed.
    await asyncio.sleep(5 * rules.idle_s)
    await until(two)
    kept = await rows(world)
    first = await create(world)
    assert (first.acquire_source, first.id in kept) == ("pool", True)

    async def refilled() -> bool:
        return len(await rows(world)) == 2 and await two_ready(world)

    await until(refilled)
    await world.engine.destroy(first.id)
    await world.engine.aclose()
    assert await world.left() == ([], [])


async def test_a_listed_sandbox_that_nothing_claimed_for_its_lifetime_is_replaced():
    world = World(pool=PoolRules(idle_s=2.0, kinds=(PoolKind(SandboxOptions()),)))
    await world.engine.recover()
    await until(lambda: ready(world, 1))
    (old,) = await rows(world)
    world.clock.ahead_s += LIFETIME_S / 2
    await world.engine.sweep()
    assert await rows(world) == [old]
    world.clock.ahead_s += LIFETIME_S
    await world.engine.sweep()
    assert old not in await rows(world)
    await until(lambda: ready(world, 1))
    await world.engine.aclose()
    assert await world.left() == ([], [])


async def two_ready(world: World) -> bool:
    return await ready(world, 2)


async def ready(world: World, count: int) -> bool:
    found = [one for one in await world.store.list() if one.acquired == "spare"]
    return [one.state for one in found] == [State.RUNNING] * count


@pytest.mark.promise("P94")
async def test_the_next_daemon_adopts_what_is_left_of_a_listed_kind_and_removes_the_rest():
    world = World(pool=PoolRules(idle_s=90.0, kinds=(PoolKind(SandboxOptions(), ready=2),)))
    await world.engine.recover()
    await until(lambda: two_ready(world))
    left = await rows(world)
    # As after kill -9: the process is gone, one sandbox is of a kind that is not listed any more.
    for the_id, kind in zip(left, (None, "other"), strict=True):
        (row,) = [one for one in await world.store.list() if one.id == the_id]
        row = replace(row, owner_start=row.owner_start + 1, pool_kind=kind or row.pool_kind)
        await world.store.put(row)
    next_one = world.another()
    await next_one.recover()
    assert left[1] not in await rows(world)
    info = await next_one.create(CreateRequest())
    assert (info.id, info.acquire_source) == (left[0], "pool")
    assert (await next_one.exec(info.id, ExecRequest("echo mine"))).stdout == b"mine\n"
    await next_one.destroy(info.id)
    await next_one.aclose()
    await world.engine.aclose()
    assert await world.left() == ([], [])


def test_a_sandbox_with_a_waiting_interpreter_is_of_another_kind_in_the_ledger():
    spec = CellSpec(Image("host"))
    assert kind_digest("local", spec, None, "1") != kind_digest("local", spec, "python", "1")


@pytest.mark.promise("P94")
async def test_a_pooled_sandbox_that_does_not_answer_does_not_stop_the_start(monkeypatch):
    world = World(pool=PoolRules(idle_s=90.0, kinds=(PoolKind(SandboxOptions()),)))
    await world.engine.recover()
    await until(lambda: ready(world, 1))
    (row,) = await world.store.list()
    await world.store.put(replace(row, owner_start=row.owner_start + 1))
    monkeypatch.setattr(spare_claims, "CLAIM_TIMEOUT_S", 0.0)
    next_one = world.another()
    await next_one.recover()
    assert row.id not in await rows(world)
    await next_one.aclose()
    await world.engine.aclose()
    assert await world.left() == ([], [])


@pytest.mark.parametrize(
    "text", [" ", "ready=2", "ready=2 python", "python ready=0", "python network=some", "python x"]
)
def test_invalid_kind_is_refused(text):
    with pytest.raises(InvalidRequest):
        parse_pool_kind(text)


@pytest.mark.promise("P94")
async def test_a_runner_takes_the_environment_of_one_claim_only(world):
    for _ in range(2):
        await world.engine.destroy((await create(world)).id)
    spare = await spare_of(world)
    await create(world, env={"A": "1"})
    channel = world.engine._handles.peek(spare).channel
    with pytest.raises(InvalidRequest):
        await channel.call("lease", {"idle_ms": 1000, "lifetime_ms": 1000, "env": {"A": "2"}})
    assert (await world.engine.exec(spare, ExecRequest("echo $A"))).stdout == b"1\n"
    await world.engine.destroy(spare)
