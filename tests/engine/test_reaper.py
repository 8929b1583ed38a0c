"""The reaper: leftovers of every kind are removed, and nothing that is in use."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandkasten.disk.process_identity import boot_id, this_process
from sandkasten.errors import BackendUnavailable
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, Swept
from sandkasten_runtime.engine.owner import owner_gone
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from tests.engine.injections import World
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def row(world, the_id):
    found = await world.store.get(the_id)
    assert found is not None
    return found


async def test_a_live_sandbox_is_kept(world, box):
    assert await world.engine.sweep() == Swept()
    other = world.another()
    assert await other.sweep() == Swept()
    await other.aclose()
    assert (await world.engine.exec(box, ExecRequest("echo ok"))).stdout == b"ok\n"


async def test_a_half_destroyed_sandbox_is_finished(world, box):
    await world.store.put(replace(await row(world, box), state=State.DESTROYING))
    assert await world.engine.sweep() == Swept(finished=(box,))
    assert await world.left() == ([], [])


async def test_a_half_created_sandbox_of_a_dead_process_is_removed(world, box):
    creating = replace(await row(world, box), state=State.CREATING, owner_start=1)
    await world.store.put(creating)
    assert await world.engine.sweep() == Swept(finished=(box,))
    assert await world.left() == ([], [])


async def test_a_row_without_a_resource_is_dropped(world):
    info = await world.engine.create(CreateRequest())
    await world.backend.real.discard(info.id)
    creating = replace(await row(world, info.id), state=State.CREATING, boot_id="another boot")
    await world.store.put(creating)
    assert (await world.another().sweep()).finished == (info.id,)
    assert await world.left() == ([], [])


async def test_a_sandbox_that_is_being_created_is_kept(world):
    reached, go = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await go.wait()

    world.backend.gate.after_create = wait
    creating = asyncio.create_task(world.engine.create(CreateRequest()))
    await reached.wait()
    other = world.another()
    assert await other.sweep() == Swept()
    # Even when its owner seems to be gone: whoever holds the lock is at work.
    (one,) = await world.store.list()
    await world.store.put(replace(one, owner_start=1))
    assert await other.sweep() == Swept()
    await other.aclose()
    go.set()
    info = await creating
    assert (await world.engine.exec(info.id, ExecRequest("echo ok"))).stdout == b"ok\n"


async def test_a_cell_without_a_row_is_removed(world, box):
    orphan = new_sandbox_id()
    await world.backend.real.create(orphan, CellSpec(image=Image("host")))
    assert await world.engine.sweep() == Swept(orphans=(orphan,))
    assert await world.left() == ([box], [box])


async def test_a_dead_cell_is_collected(world, box):
    await world.backend.cells[box].real.crash()
    assert await world.another().sweep() == Swept(dead=(box,))
    assert await world.left() == ([], [])


async def test_a_lost_row_is_collected(world, box):
    await world.backend.cells[box].real.crash()
    assert (await world.engine.get(box)).status == "lost"
    assert await world.engine.sweep() == Swept(dead=(box,))
    assert await world.left() == ([], [])


async def test_everything_of_an_earlier_boot_is_collected(world, box):
    await world.store.put(replace(await row(world, box), boot_id="another boot"))
    assert await world.another().sweep() == Swept(dead=(box,))
    assert await world.left() == ([], [])


async def test_a_sandbox_past_its_lifetime_is_expired_and_one_before_is_not(world):
    short = await world.engine.create(CreateRequest(SandboxOptions(lifetime_seconds=100)))
    long = await world.engine.create(CreateRequest())
    world.clock.ahead_s = 105
    assert await world.engine.sweep() == Swept()
    world.clock.ahead_s = 111
    assert await world.engine.sweep() == Swept(expired=(short.id,))
    assert await world.left() == ([long.id], [long.id])


async def test_a_damaged_row_and_its_sandbox_are_removed(tmp_path):
    world = World(store=DirectoryStore(tmp_path))
    info = await world.engine.create(CreateRequest())
    (tmp_path / "rows" / f"{info.id}.json").write_text("{")
    assert await world.another().sweep() == Swept(corrupt=(info.id,))
    assert await world.left() == ([], [])
    assert list((tmp_path / "rows").iterdir()) == []
    await world.engine.aclose()


async def test_a_failed_removal_is_retried(world, box):
    async def fail() -> None:
        raise BackendUnavailable("no")

    await world.backend.cells[box].real.crash()
    world.backend.gate.before_destroy = fail
    assert await world.engine.sweep() == Swept(failed=(box,))
    assert (await row(world, box)).state is State.DESTROYING
    world.backend.gate.before_destroy = None
    assert await world.engine.sweep() == Swept(finished=(box,))


async def test_a_backend_that_does_not_answer_does_not_stop_the_sweep(world, box):
    async def fail() -> None:
        raise BackendUnavailable("no")

    world.backend.gate.before_owned = fail
    await world.store.put(replace(await row(world, box), state=State.DESTROYING))
    assert await world.engine.sweep() == Swept(finished=(box,))
    assert "reaper.backend_silent" in world.events.names()


async def test_rows_of_an_unconfigured_backend_are_kept(world, box):
    stranger = replace(await row(world, box), id=new_sandbox_id(), backend="docker")
    await world.store.put(replace(stranger, state=State.DESTROYING))
    assert await world.engine.sweep() == Swept()
    assert await world.store.get(stranger.id) is not None


async def test_sweeps_that_race_with_exec_and_with_each_other_reap_nothing_alive(world):
    infos = [await world.engine.create(CreateRequest()) for _ in range(5)]
    others = [world.another() for _ in range(3)]

    async def work(the_id: str) -> None:
        for _ in range(30):
            assert (await world.engine.exec(the_id, ExecRequest("echo ok"))).stdout == b"ok\n"

    async def reap(engine) -> None:
        for _ in range(30):
            assert await engine.sweep() == Swept()

    await asyncio.gather(*(work(i.id) for i in infos), *(reap(e) for e in others))
    for one in others:
        await one.aclose()


async def test_sweeps_that_race_with_create_and_destroy_reap_nothing_alive(world):
    other = world.another()

    async def cycle() -> None:
        for _ in range(20):
            info = await world.engine.create(CreateRequest())
            assert (await world.engine.exec(info.id, ExecRequest("echo ok"))).stdout == b"ok\n"
            await world.engine.destroy(info.id)

    cycles = asyncio.gather(*(cycle() for _ in range(4)))
    while not cycles.done():
        await other.sweep()
        await asyncio.sleep(0)
    await cycles
    await other.aclose()
    assert await world.left() == ([], [])


async def test_a_short_lived_engine_sweeps_on_its_way_out(world, box):
    await world.store.put(replace(await row(world, box), state=State.DESTROYING))
    other = world.another()
    other.sweep_soon()
    await other.aclose()
    assert await world.left() == ([], [])


async def test_a_background_sweep_needs_no_caller(world, box):
    await world.store.put(replace(await row(world, box), state=State.DESTROYING))
    other = world.another()
    other.sweep_soon(0)
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while (await world.left())[0]:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    await other.aclose()


async def test_an_owner_is_identified_by_more_than_its_pid(world, box):
    ours = await row(world, box)
    assert (ours.owner_pid, ours.owner_start) == (this_process().pid, this_process().start)
    assert not owner_gone(ours)
    assert owner_gone(replace(ours, owner_start=ours.owner_start + 1))
    assert owner_gone(replace(ours, boot_id="x" + boot_id()))
    assert owner_gone(replace(ours, owner_pid=2**22 + 1))


@pytest.mark.promise("P119")
async def test_a_sandbox_of_an_engine_that_left_the_settings_counts_until_its_lifetime_is_over(
    world, box
):
    """It ended itself by then; what is left of it is removed when the backend is added again."""
    before = replace(await row(world, box), backend="docker/gone")
    await world.store.put(before)
    other = world.another()
    assert await other.sweep() == Swept()
    with pytest.raises(BackendUnavailable, match="docker/gone is not installed here"):
        await other.destroy(box)
    assert (await row(world, box)).state is State.DESTROYING
    rebooted = replace(before, boot_id="another boot")
    await world.store.put(rebooted)
    assert await other.sweep() == Swept()
    world.clock.ahead_s = before.lifetime_s + 60
    for record, swept in ((before, Swept(expired=(box,))), (rebooted, Swept(dead=(box,)))):
        await world.store.put(record)
        assert await other.sweep() == swept
        assert await world.store.list() == []
    # Nothing but its row was touched.
    assert await world.backend.real.owned() == (box,)
    await other.aclose()
