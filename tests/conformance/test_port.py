"""The seven methods of the backend port: a cell is complete or absent, found again, and removed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import SandboxLost, SandkastenError, UnsupportedByBackend
from sandkasten.model.backends.backend_features import ALL_LIMITS
from sandkasten.model.backends.capabilities import UNKNOWN
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec, HostMount, Volume
from sandkasten.model.sandbox.gpus import GpuRequest
from sandkasten.model.sandbox.network_policy import NetworkPolicy
from sandkasten.model.sandbox.usage import Usage
from sandkasten.ports import (
    Candid,
    CountsAfterEnd,
    KeepsImages,
    KeepsWorkspaces,
    MaintainsWorkspaces,
    Pausable,
    Places,
    Readable,
    RefusesNetworks,
    Remote,
    Resizes,
    RunsOnce,
)
from sandkasten_contract.box import Box, eventually
from sandkasten_contract.patience import PATIENCE_S
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.frame_codec import GENERATION

if TYPE_CHECKING:
    from sandkasten.ports import Backend, Cell


async def test_probe_reports_ready_and_names_its_requirements(backend: Backend):
    readiness = await backend.probe()
    assert readiness.ready
    assert readiness.reason == ""
    assert all(one.ok for one in readiness.requirements if one.required)


async def test_cell_can_do_what_its_capabilities_say(backend: Backend, cell: Cell):
    can = backend.capabilities
    if can == UNKNOWN:
        assert backend.name == "unisolated"
        return
    has = can.features
    assert isinstance(cell, Pausable) is has.pause
    assert isinstance(backend, Resizes) is has.resize
    promised = {
        RunsOnce: can.run_once,
        KeepsImages: can.own_images,
        KeepsWorkspaces: can.own_workspaces,
        MaintainsWorkspaces: can.maintains_workspaces,
        Remote: can.remote,
        RefusesNetworks: can.refuses_networks,
        CountsAfterEnd: can.counts_after_end,
        Places: bool(can.default_place),
    }
    assert {kind: isinstance(backend, kind) for kind in promised} == promised
    assert isinstance(cell, Readable) or not can.reads_changes
    told = cell.unenforced if isinstance(cell, Candid) else ()
    assert {one.limit for one in told} >= set(ALL_LIMITS) - set(has.limits)


async def test_create_returns_a_cell_whose_runner_answers(cell: Cell):
    channel = await Channel.open(await cell.dial())
    assert channel.hello.generation == GENERATION
    assert await channel.call("ping", timeout_s=PATIENCE_S) == {}
    await channel.aclose()
    assert channel.closed


async def test_owned_lists_created_cells_until_they_are_destroyed(backend: Backend, spec: CellSpec):
    ids = sorted([new_sandbox_id(), new_sandbox_id()])
    cells = [await backend.create(one, spec) for one in ids]
    assert sorted(await backend.owned()) == ids
    for cell in cells:
        await cell.destroy()
    assert list(await backend.owned()) == []


async def test_create_that_fails_leaves_nothing(backend: Backend):
    missing = Image("gone", kind="layers", layers=("/nonexistent/layer",))
    with pytest.raises(SandkastenError):
        await backend.create(new_sandbox_id(), CellSpec(image=missing))
    assert list(await backend.owned()) == []


async def test_create_refuses_what_its_capabilities_do_not_list(
    backend: Backend, spec: CellSpec
) -> None:
    if backend.capabilities == UNKNOWN:
        assert backend.name == "unisolated"
        return
    features = backend.capabilities.features
    requests = {
        "network full": replace(spec, network=NetworkPolicy(full=True)),
        "network rules": replace(spec, network=NetworkPolicy(allow=("example.com:443",))),
        "profile dev": replace(spec, profile="dev"),
        "named workspaces": replace(spec, workspace=Volume("/nonexistent", "directory")),
        "host mounts": replace(spec, mounts=(HostMount("/etc", "/mnt"),)),
        "GPUs": replace(spec, gpus=GpuRequest(count=1)),
    }
    supported = {
        "network full": "full" in features.networks,
        "network rules": "rules" in features.networks,
        "profile dev": features.dev_profile,
        "named workspaces": features.workspaces,
        "host mounts": features.mounts,
        "GPUs": features.gpus,
    }
    created = []
    for feature, request in requests.items():
        if supported[feature]:
            continue
        try:
            cell = await backend.create(new_sandbox_id(), request)
        except UnsupportedByBackend:
            continue
        created.append(feature)
        await cell.destroy()
    assert created == []
    assert list(await backend.owned()) == []


async def test_creating_an_id_twice_keeps_the_first_cell(backend: Backend, spec: CellSpec):
    sandbox_id = new_sandbox_id()
    first = await backend.create(sandbox_id, spec)
    with pytest.raises(SandkastenError):
        await backend.create(sandbox_id, spec)
    box = await Box.open(first)
    assert (await box.run(["echo", "alive"])).stdout == b"alive\n"
    await box.aclose()


async def test_create_cancelled_midway_leaves_nothing(backend: Backend, spec: CellSpec):
    sandbox_id = new_sandbox_id()
    making = asyncio.create_task(backend.create(sandbox_id, spec))
    await asyncio.sleep(0)
    making.cancel()
    try:
        cell = await making
    except asyncio.CancelledError:
        pass
    else:
        # It was quicker than the cancellation: then there is a whole cell.
        await cell.destroy()
    assert list(await backend.owned()) == []


@pytest.mark.aspect("ending")
async def test_destroying_a_cell_twice_succeeds(backend: Backend, spec: CellSpec):
    cell = await backend.create(new_sandbox_id(), spec)
    await cell.destroy()
    await cell.destroy()
    assert list(await backend.owned()) == []


@pytest.mark.aspect("ending")
async def test_destroying_a_cell_from_two_tasks_succeeds(backend: Backend, spec: CellSpec):
    cell = await backend.create(new_sandbox_id(), spec)
    await asyncio.gather(cell.destroy(), cell.destroy(), cell.destroy())
    assert list(await backend.owned()) == []


@pytest.mark.aspect("ending")
async def test_destroy_ends_calls_in_progress(backend: Backend, spec: CellSpec):
    cell = await backend.create(new_sandbox_id(), spec)
    box = await Box.open(cell)
    exec_id = await box.begin(["sleep", "1000"])
    waiting = asyncio.create_task(box.wait(exec_id))
    await asyncio.sleep(0)
    await cell.destroy()
    with pytest.raises(SandboxLost):
        await waiting
    await box.aclose()


@pytest.mark.aspect("ending")
async def test_dial_after_destroy_is_sandbox_lost(backend: Backend, spec: CellSpec):
    cell = await backend.create(new_sandbox_id(), spec)
    await cell.destroy()
    with pytest.raises(SandboxLost):
        await cell.dial()


async def test_attach_finds_the_same_cell(backend: Backend, spec: CellSpec):
    sandbox_id = new_sandbox_id()
    made = await Box.open(await backend.create(sandbox_id, spec))
    await made.run("x=remembered")
    await made.aclose()
    found = await Box.open(await backend.attach(sandbox_id))
    assert (await found.run("echo $x")).stdout == b"remembered\n"
    await found.aclose()


@pytest.mark.aspect("ending")
async def test_an_attached_cell_can_be_destroyed(backend: Backend, spec: CellSpec):
    sandbox_id = new_sandbox_id()
    made = await backend.create(sandbox_id, spec)
    await (await backend.attach(sandbox_id)).destroy()
    assert list(await backend.owned()) == []
    with pytest.raises(SandboxLost):
        await made.dial()


async def test_attach_of_an_unknown_id_is_sandbox_lost(backend: Backend):
    with pytest.raises(SandboxLost):
        await backend.attach(new_sandbox_id())


@pytest.mark.aspect("ending")
async def test_attach_after_destroy_is_sandbox_lost(backend: Backend, spec: CellSpec):
    sandbox_id = new_sandbox_id()
    cell = await backend.create(sandbox_id, spec)
    await cell.destroy()
    with pytest.raises(SandboxLost):
        await backend.attach(sandbox_id)


async def test_many_concurrent_dials_all_succeed(cell: Cell):
    async def one(number: int) -> bytes:
        box = await Box.open(cell)
        try:
            return (await box.run(["echo", str(number)])).stdout
        finally:
            await box.aclose()

    answers = await asyncio.gather(*(one(number) for number in range(16)))
    assert answers == [b"%d\n" % number for number in range(16)]


@pytest.mark.aspect("large")
async def test_a_hundred_dials_leave_no_connection_open(cell: Cell):
    for _ in range(100):
        await (await cell.dial()).aclose()
    box = await Box.open(cell)

    async def connections() -> int:
        return int((await box.ask("stats"))["connections"])

    await eventually(connections, 1)
    await box.aclose()


async def test_two_cells_do_not_see_each_other(backend: Backend, spec: CellSpec):
    one = await Box.open(await backend.create(new_sandbox_id(), spec))
    other = await Box.open(await backend.create(new_sandbox_id(), spec))
    await one.write("mine", b"secret")
    assert (await other.list()).entries == ()
    assert [entry.name for entry in (await one.list()).entries] == ["mine"]
    await one.aclose()
    await other.aclose()


async def test_usage_returns_numbers_or_none(cell: Cell):
    usage = await cell.usage()
    assert isinstance(usage, Usage)
    for figure in (usage.memory_bytes, usage.cpu_usec, usage.pids, usage.oom_kills):
        assert figure is None or figure >= 0
    if usage.pids is not None and usage.pids_limit is not None:
        assert 1 <= usage.pids <= usage.pids_limit


@pytest.mark.aspect("ending")
async def test_usage_after_destroy_is_sandbox_lost_or_empty(backend: Backend, spec: CellSpec):
    cell = await backend.create(new_sandbox_id(), spec)
    await cell.destroy()
    try:
        usage = await cell.usage()
    except SandboxLost:
        return
    assert usage.pids in (None, 0, 1)


async def test_the_environment_of_the_spec_reaches_commands(backend: Backend, spec: CellSpec):
    greeting = replace(spec, env={"GREETING": "good morning"})
    box = await Box.open(await backend.create(new_sandbox_id(), greeting))
    assert (await box.run(["sh", "-c", "echo $GREETING"])).stdout == b"good morning\n"
    assert (await box.run("echo $GREETING")).stdout == b"good morning\n"
    await box.aclose()
