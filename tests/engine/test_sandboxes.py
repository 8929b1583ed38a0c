"""Create, describe, destroy: the row before the resource, and nothing left by a failure."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    Conflict,
    ImageNotFound,
    InvalidImage,
    InvalidRequest,
    IsolationRefused,
    PolicyDenied,
    QuotaExceeded,
    SandboxLost,
    SandkastenError,
    SessionExpired,
    SessionNotFound,
    UnsupportedByBackend,
)
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.network_policy import CLOSED
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.model.sandbox.session_joins import JoinTerms
from sandkasten_runtime.engine.lifecycle import sandboxes
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from tests.engine.injections import World
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_a_sandbox_is_described_as_requested(engine):
    info = await engine.create(
        CreateRequest(
            SandboxOptions(
                ttl_seconds=60,
                lifetime_seconds=120,
                env={"A": "1"},
                labels={"team": "x"},
                limits={"mem_limit_mb": 64},
            )
        )
    )
    assert info.id == info.sandbox_id == info.session_id
    assert (info.status, info.created, info.image, info.backend) == (
        "running",
        True,
        "host",
        "unisolated",
    )
    assert (info.cwd, info.workdir, info.acquire_source) == ("/workspace", "/workspace", "cold")
    assert info.limits.memory_bytes == 64 * 2**20
    assert (info.labels, info.env_names, info.warnings) == ({"team": "x"}, ("A",), ())
    assert (info.idle_timeout_s, info.lifetime_s) == (60, 120)
    assert info.created_at + 59 < info.expires_at < time.time() + 61
    again = await engine.get(info.id)
    assert (again.id, again.created, again.labels) == (info.id, False, {"team": "x"})
    assert [one.id for one in await engine.list()] == [info.id]


async def test_the_end_is_the_same_each_time_it_is_asked_for(world, monkeypatch):
    info = await world.engine.create(CreateRequest(SandboxOptions(ttl_seconds=60)))
    now = world.clock.now

    async def ends(moved_s: float) -> float:
        monkeypatch.setattr(world.clock, "now", lambda: now() + moved_s)
        return (await world.engine.get(info.id)).expires_at

    # The two clocks are read one after the other, with a pause between them that varies.
    assert {await ends(moved_s) for moved_s in (0, 0.002, 0.7)} == {info.expires_at}
    # The clock was set. The sandbox lives as long as before, so its end has another name.
    assert await ends(3600) == pytest.approx(info.expires_at + 3600, abs=1)


async def test_the_environment_of_a_sandbox_is_the_operators_then_the_callers():
    world = World(policy=Policy(env={"A": "operator", "B": "operator"}))
    info = await world.engine.create(CreateRequest(SandboxOptions(env={"A": "caller"})))
    result = await world.engine.exec(info.id, ExecRequest("echo $A $B"))
    assert result.stdout == b"caller operator\n"
    await world.engine.destroy(info.id)
    await world.engine.aclose()


@pytest.mark.promise("P27")
async def test_no_request_gets_more_than_the_operators_maximum():
    world = World(policy=Policy(ceiling={"mem_limit_mb": 256, "max_stdout_bytes": 1000}))
    with pytest.raises(PolicyDenied) as refused:
        await world.engine.create(CreateRequest(SandboxOptions(limits={"memory_mb": 257})))
    assert refused.value.details["rule"] == "policy.max.mem_limit_mb"
    with pytest.raises(PolicyDenied):
        await world.engine.run(
            RunRequest("echo", "bash", options=SandboxOptions(limits={"max_stdout_bytes": 1001}))
        )
    info = await world.engine.create(CreateRequest(SandboxOptions(limits={"memory_mb": 256})))
    assert info.limits.memory_bytes == 256 * 1024 * 1024
    await world.engine.aclose()


async def test_an_alias_causes_a_warning_and_the_default_does_not(engine):
    named = await engine.create(CreateRequest(SandboxOptions(image="bash")))
    assert named.warnings == ("alias bash (ubuntu:22.04) resolved to the host image",)
    silent = await engine.create(CreateRequest())
    assert silent.warnings == ()
    world = World(policy=Policy(default_image="bash"))
    assert (await world.engine.create(CreateRequest())).warnings == ()
    await world.engine.aclose()


@pytest.mark.promise("P50")
async def test_an_allow_list_without_host_never_runs_on_the_host_image():
    world = World(allowed=["python:3.11-slim", "ubuntu:22.04"])
    for image in (None, "bash"):
        with pytest.raises(ImageNotFound) as refused:
            await world.engine.create(CreateRequest(SandboxOptions(image=image)))
        assert "sandkasten image pull ubuntu:22.04" in refused.value.hint
    with pytest.raises(ImageNotFound):
        await world.engine.run(RunRequest("print()", runtime="python"))
    assert await world.engine.list() == []
    await world.engine.aclose()


async def test_an_allow_list_with_one_image_makes_it_the_default():
    world = World(
        allowed=["python:3.11-slim", "ubuntu:22.04", "host"],
        policy=Policy(default_image="debian:12"),
    )
    info = await world.engine.create(CreateRequest())
    assert (info.image, info.warnings) == ("host", ())
    result = await world.engine.run(RunRequest("echo ok", runtime="bash"))
    assert result.stdout == b"ok\n"
    with pytest.raises(PolicyDenied) as refused:
        await world.engine.create(CreateRequest(SandboxOptions(image="debian:12")))
    assert "ubuntu:22.04" in refused.value.hint
    with pytest.raises(PolicyDenied):
        await world.engine.run(RunRequest("echo ok", runtime="node"))
    await world.engine.aclose()


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (CreateRequest(SandboxOptions(image="--privileged")), InvalidImage),
        (CreateRequest(SandboxOptions(image="python:3.11-slim")), InvalidImage),
        (CreateRequest(SandboxOptions(network="bridge")), InvalidRequest),
        (CreateRequest(SandboxOptions(network="full")), UnsupportedByBackend),
        (CreateRequest(SandboxOptions(profile="dev")), UnsupportedByBackend),
        (CreateRequest(SandboxOptions(backend="docker")), BackendUnavailable),
        (CreateRequest(SandboxOptions(env={"A B": "x"})), InvalidRequest),
        (CreateRequest(SandboxOptions(labels={"": "x"})), InvalidRequest),
        (CreateRequest(SandboxOptions(labels={str(i): "x" for i in range(65)})), InvalidRequest),
        (CreateRequest(SandboxOptions(limits={"ram": 5})), InvalidRequest),
        (CreateRequest(SandboxOptions(ttl_seconds=-1)), InvalidRequest),
        (CreateRequest(session_key="\n"), InvalidRequest),
    ],
)
async def test_an_invalid_request_is_refused_before_anything_is_created(world, request_, error):
    with pytest.raises(error) as refused:
        await world.engine.create(request_)
    assert refused.value.hint
    assert world.backend.created == 0
    assert await world.left() == ([], [])


async def test_destroy_removes_everything_and_the_sandbox_is_unknown_afterwards(world, box):
    await world.engine.destroy(box)
    assert await world.left() == ([], [])
    for call in (world.engine.destroy(box), world.engine.get(box)):
        with pytest.raises(SessionNotFound):
            await call
    with pytest.raises(SessionNotFound):
        await world.engine.exec(box, ExecRequest("true"))


@pytest.mark.parametrize("text", ["", "../x", "sbx_", "sbx_" + "0" * 16, "a;rm", "x" * 10_000])
async def test_an_unknown_id_is_not_found(engine, text):
    for call in (engine.get(text), engine.destroy(text), engine.exec(text, ExecRequest("true"))):
        with pytest.raises(SessionNotFound):
            await call


@pytest.mark.promise("P29")
async def test_the_row_is_written_before_the_resource(world):
    seen: list[tuple[str, str]] = []

    async def look() -> None:
        seen.extend((r.id, r.state) for r in await world.store.list())
        assert await world.backend.real.owned() == ()

    world.backend.gate.before_create = look
    info = await world.engine.create(CreateRequest())
    assert seen == [(info.id, State.CREATING)]


async def test_the_row_is_removed_after_the_resource(world, box):
    seen: list[str] = []

    async def look() -> None:
        seen.extend(r.state for r in await world.store.list())

    world.backend.gate.before_destroy = look
    await world.engine.destroy(box)
    assert seen == [State.DESTROYING]


@pytest.mark.parametrize("where", ["before_create", "after_create", "before_dial"])
async def test_a_failed_create_leaves_nothing(world, where):
    async def fail() -> None:
        raise IsolationRefused("no", hint="try")

    setattr(world.backend.gate, where, fail)
    with pytest.raises(IsolationRefused):
        await world.engine.create(CreateRequest())
    assert await world.left() == ([], [])
    assert "sandbox.create_failed" in world.events.names()


@pytest.mark.parametrize("where", ["before_create", "after_create", "before_dial"])
async def test_a_cancelled_create_leaves_nothing(world, where):
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.sleep(600)

    setattr(world.backend.gate, where, hang)
    creating = asyncio.create_task(world.engine.create(CreateRequest()))
    await reached.wait()
    setattr(world.backend.gate, where, None)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert await world.left() == ([], [])


async def test_a_hanging_create_times_out(world, monkeypatch):
    monkeypatch.setattr(sandboxes, "CREATE_TIMEOUT_S", 0.05)

    async def hang() -> None:
        await asyncio.sleep(600)

    world.backend.gate.before_create = hang
    with pytest.raises(BackendUnavailable):
        await world.engine.create(CreateRequest())
    assert await world.left() == ([], [])


async def test_a_backend_that_starts_slowly_says_how_long_a_create_may_take(world, monkeypatch):
    monkeypatch.setattr(sandboxes, "CREATE_TIMEOUT_S", 0.0)
    slow = replace(world.backend.capabilities, create_timeout_s=PATIENCE_S)
    monkeypatch.setattr(world.backend, "capabilities", slow)
    await world.engine.destroy((await world.engine.create(CreateRequest())).id)


async def test_a_hanging_clean_up_is_marked_and_finished_later(world, monkeypatch):
    monkeypatch.setattr(sandboxes, "DESTROY_TIMEOUT_S", 0.05)
    gate = world.backend.gate

    async def fail() -> None:
        raise IsolationRefused("no")

    async def hang() -> None:
        await asyncio.sleep(600)

    gate.after_create, gate.before_destroy = fail, hang
    with pytest.raises(IsolationRefused):
        await world.engine.create(CreateRequest())
    (row,) = await world.store.list()
    assert row.state is State.DESTROYING
    gate.before_destroy = None
    monkeypatch.undo()
    swept = await world.engine.sweep()
    assert swept.finished == (row.id,)
    assert await world.left() == ([], [])


async def test_a_hanging_destroy_is_an_error_and_finished_later(world, box, monkeypatch):
    monkeypatch.setattr(sandboxes, "DESTROY_TIMEOUT_S", 0.05)

    async def hang() -> None:
        await asyncio.sleep(600)

    world.backend.gate.before_destroy = hang
    with pytest.raises(BackendUnavailable) as refused:
        await world.engine.destroy(box)
    assert refused.value.retryable
    world.backend.gate.before_destroy = None
    monkeypatch.undo()
    await world.engine.destroy(box)
    assert await world.left() == ([], [])


async def test_a_cancelled_destroy_is_finished(world, box):
    reached, go = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await go.wait()

    world.backend.gate.before_destroy = wait
    destroying = asyncio.create_task(world.engine.destroy(box))
    await reached.wait()
    destroying.cancel()
    await asyncio.sleep(0)
    destroying.cancel()
    await asyncio.sleep(0)
    assert not destroying.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await destroying
    assert await world.left() == ([], [])


async def test_a_store_failure_after_the_resource_was_created_leaves_nothing(world):
    real_put, puts = world.store.put, 0

    async def put(record) -> None:
        nonlocal puts
        puts += 1
        if puts >= 2:
            raise QuotaExceeded("the disk is full")
        await real_put(record)

    world.store.put = put
    with pytest.raises(QuotaExceeded):
        await world.engine.create(CreateRequest())
    assert await world.left() == ([], [])


async def test_a_full_disk_does_not_keep_a_sandbox_alive(world, box):
    async def put(record) -> None:
        raise QuotaExceeded("the disk is full")

    world.store.put = put
    await world.engine.destroy(box)
    assert await world.left() == ([], [])


async def test_one_key_names_one_sandbox(engine):
    first = await engine.create(CreateRequest(session_key="k"))
    again = await engine.create(CreateRequest(session_key="k"))
    other = await engine.create(CreateRequest(session_key="l"))
    assert (first.created, again.created, again.id) == (True, False, first.id)
    assert other.id != first.id
    assert again.session_key == "k"


async def test_a_hundred_creates_with_one_key_create_one_sandbox(world):
    infos = await asyncio.gather(
        *(world.engine.create(CreateRequest(session_key="k")) for _ in range(100))
    )
    assert len({info.id for info in infos}) == 1
    assert sum(info.created for info in infos) == 1
    assert world.backend.created == 1


async def test_two_engines_on_one_ledger_share_a_key(tmp_path):
    world = World(store=DirectoryStore(tmp_path))
    other = world.another()
    infos = await asyncio.gather(
        *(e.create(CreateRequest(session_key="k")) for e in (world.engine, other) * 10)
    )
    assert len({info.id for info in infos}) == 1
    await world.engine.aclose()
    await other.aclose()


async def test_a_key_whose_sandbox_died_gets_a_new_one(world):
    first = await world.engine.create(CreateRequest(session_key="k"))
    await world.backend.cells[first.id].real.crash()
    second = await world.engine.create(CreateRequest(session_key="k"))
    assert (second.created, second.id == first.id) == (True, False)
    assert await world.left() == ([second.id], [second.id])


async def test_a_key_is_free_again_after_a_failed_create(world):
    async def fail() -> None:
        raise IsolationRefused("no")

    world.backend.gate.before_create = fail
    with pytest.raises(IsolationRefused):
        await world.engine.create(CreateRequest(session_key="k"))
    world.backend.gate.before_create = None
    assert (await world.engine.create(CreateRequest(session_key="k"))).created


async def test_a_different_request_under_a_used_key_is_a_conflict(world, monkeypatch):
    await world.engine.create(CreateRequest(session_key="k"))
    await world.engine.create(CreateRequest(SandboxOptions(image="bash"), session_key="k"))
    (row,) = await world.store.list()
    await world.store.put(replace(row, image="other"))
    with pytest.raises(Conflict) as refused:
        await world.engine.create(CreateRequest(SandboxOptions(image="host"), session_key="k"))
    assert "image other" in refused.value.message


async def test_the_host_image_stays_read_only_and_says_so():
    world = World(policy=Policy(readonly_rootfs=False))
    info = await world.engine.create(CreateRequest())
    assert info.warnings == (
        "the root of the host image is read-only; defaults.readonly_rootfs is for images",
    )
    await world.engine.destroy(info.id)
    await world.engine.aclose()


async def test_joining_a_session_does_not_need_the_default_image(world):
    first = await world.engine.create(CreateRequest(SandboxOptions(image="host"), session_key="k"))
    world.policy = replace(world.policy, default_image="nowhere:1")
    other = world.another()
    joined = await other.create(CreateRequest(session_key="k"))
    named = CreateRequest(SandboxOptions(image="nowhere:2"), session_key="k")
    again = await other.create(named, terms=JoinTerms(SandboxOptions()))
    await other.preflight.session(named, terms=JoinTerms(SandboxOptions()))
    assert [first.id] * 2 == [joined.id, again.id]
    for refused in (other.create(named), other.preflight.session(named)):
        with pytest.raises(SandkastenError) as caught:
            await refused
        assert "nowhere:2" in caught.value.message
    # A session that ended is made anew, and that needs an image.
    await other.destroy(first.id)
    with pytest.raises(SandkastenError) as caught:
        await other.create(CreateRequest(session_key="k"))
    assert "nowhere:1" in caught.value.message
    assert await world.left() == ([], [])
    await other.aclose()


async def test_another_engine_continues_in_the_same_shell(world, box):
    await world.engine.exec(box, ExecRequest("cd /tmp && export A=7"))
    other = world.another()
    result = await other.exec(box, ExecRequest("echo $A; pwd"))
    assert result.stdout == b"7\n/tmp\n"
    assert [one.id for one in await other.list()] == [box]
    await other.aclose()


async def test_a_sandbox_destroyed_by_another_process_is_not_found(world, box):
    await world.engine.exec(box, ExecRequest("true"))
    other = world.another()
    await other.destroy(box)
    await other.aclose()
    with pytest.raises(SessionNotFound):
        await world.engine.exec(box, ExecRequest("true"))


async def test_a_dead_sandbox_is_lost_in_every_answer(world, box):
    await world.backend.cells[box].real.crash()
    assert (await world.engine.get(box)).status == "lost"
    assert [one.status for one in await world.engine.list()] == ["lost"]
    with pytest.raises(SandboxLost):
        await world.engine.exec(box, ExecRequest("true"))
    await world.engine.destroy(box)
    assert await world.left() == ([], [])


async def test_a_sandbox_past_its_lease_is_expired(world):
    info = await world.engine.create(CreateRequest(SandboxOptions(ttl_seconds=60)))
    await world.backend.cells[info.id].real.crash()
    world.clock.ahead_s = 61
    other = world.another()
    with pytest.raises(SandboxLost):
        await other.exec(info.id, ExecRequest("true"))
    await other.aclose()
    info = await world.engine.create(CreateRequest(SandboxOptions(ttl_seconds=60)))
    await world.backend.cells[info.id].real.crash()
    world.clock.ahead_s = 61 + 14_401
    with pytest.raises(SessionExpired):
        await world.engine.exec(info.id, ExecRequest("true"))


async def test_a_sandbox_that_is_being_created_is_busy_and_not_lost(world):
    reached, go = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await go.wait()

    world.backend.gate.before_create = wait
    creating = asyncio.create_task(world.engine.create(CreateRequest()))
    await reached.wait()
    (row,) = await world.store.list()
    assert (await world.engine.get(row.id)).status == "creating"
    with pytest.raises(Busy):
        await world.engine.exec(row.id, ExecRequest("true"))
    go.set()
    assert (await creating).id == row.id


async def test_the_runner_gets_its_lease(world, monkeypatch):
    info = await world.engine.create(
        CreateRequest(SandboxOptions(ttl_seconds=1, lifetime_seconds=1))
    )
    await world.backend.cells[info.id].real.ended()
    assert (await world.engine.get(info.id)).status == "lost"


async def test_events_describe_the_lifecycle(world, box):
    await world.engine.destroy(box)
    assert world.events.names() == ["sandbox.created", "sandbox.destroyed"]
    fields = world.events.seen[0][1]
    assert 0 < fields.pop("seconds") < 10
    assert fields == {"sandbox": box, "backend": "unisolated", "image": "host", "source": "cold"}


@pytest.mark.promise("P27")
async def test_sandboxes_that_are_turned_off_are_refused_by_name():
    world = World(policy=Policy(enabled=False))
    for work in (
        world.engine.create(CreateRequest()),
        world.engine.run(RunRequest("true", runtime="bash")),
    ):
        with pytest.raises(PolicyDenied) as refused:
            await work
        assert refused.value.details == {"rule": "policy.enabled"}
    assert await world.left() == ([], [])
    await world.engine.aclose()


@pytest.mark.promise("P74")
async def test_space_is_reserved_for_what_was_promised_and_not_for_our_own_bounds(
    world, monkeypatch
):
    """A step of a build may use 8 GB, and packages 16 GB: a small disk must allow both."""
    made = []

    async def make(plan, **_):
        made.append(plan.spec.reserve_disk)
        raise Busy("seen")

    monkeypatch.setattr(world.engine._sandboxes, "make", make)
    can = replace(world.backend.capabilities, reads_changes=True)
    monkeypatch.setattr(type(world.backend), "capabilities", can)
    layers = Image("debian", "layers", ("/nowhere",))
    with pytest.raises(Busy):
        await world.engine.create(CreateRequest())
    with pytest.raises(Busy):
        async with world.engine._sites.open(Image("host"), "unisolated", (), disk_bytes=1 << 40):
            pass
    with pytest.raises(Busy):
        async with world.engine.bench.run(
            layers, ("true",), cwd="/", env={}, network=CLOSED, pip=(), on_line=print
        ):
            pass
    assert made == [True, False, False]


async def test_a_default_network_is_left_out_with_a_warning_where_no_backend_has_one():
    world = World(policy=Policy(network_default=True))
    info = await world.engine.create(CreateRequest())
    assert info.warnings == (
        "backend unisolated does not support a network; defaults.network_mode does not apply",
    )
    silent = await world.engine.create(CreateRequest(SandboxOptions(network="none")))
    assert silent.warnings == ()
    for one in (info, silent):
        await world.engine.destroy(one.id)
    await world.engine.aclose()
