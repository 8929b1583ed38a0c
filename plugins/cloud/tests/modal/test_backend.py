"""The whole backend on the Modal server: gate and runner in a machine, and what faults leave."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from grpclib import Status

from sandkasten.errors import BackendUnavailable, Busy, SandboxLost, UnsupportedByBackend
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.network_policy import NetworkPolicy
from sandkasten_contract.box import Box
from tests.cloud.modal.modal_server import Fault
from tests.cloud.modal.modal_service import open_on_modal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten_cloud.backend import CloudBackend
    from tests.cloud.modal.modal_server import ModalServer

pytestmark = [pytest.mark.promise("P116"), pytest.mark.root]
SPEC = CellSpec(image=Image("debian", "engine"))
CREATE = "SandboxCreateV2"


@pytest.fixture
async def backend(server: ModalServer, tmp_path: Path) -> AsyncIterator[CloudBackend]:
    opened = open_on_modal(server, tmp_path)
    yield opened
    await opened.aclose()


async def test_sandbox_has_a_runner_whose_key_code_cannot_read(
    backend: CloudBackend, server: ModalServer
):
    assert (await backend.probe()).ready
    cell = await backend.create(new_sandbox_id(), SPEC)
    box = await Box.open(cell)
    assert (await box.run(["id", "-u"])).stdout == b"1000\n"
    for command in (["cat", "/opt/sandkasten/keys/token"], ["cat", "/proc/1/environ"]):
        assert (await box.run(command)).exit_code == 1
    assert b"GATE_KEYS" not in (await box.run(["env"])).stdout
    # Only the loopback interface.
    assert len((await box.run(["cat", "/proc/net/dev"])).stdout.splitlines()) == 3
    await box.aclose()
    assert list(await backend.owned()) == [cell.id]
    await cell.destroy()
    assert not server.running
    assert list(await backend.owned()) == []
    with pytest.raises(SandboxLost):
        await backend.attach(cell.id)


async def test_sandbox_outlives_the_daemon_that_made_it(
    backend: CloudBackend, server: ModalServer, tmp_path: Path
):
    cell = await backend.create(new_sandbox_id(), SPEC)
    box = await Box.open(cell)
    await box.run("echo kept > note; cd /tmp")
    await backend.aclose()
    later = open_on_modal(server, tmp_path)
    again = await Box.open(await later.attach(cell.id))
    assert (await again.run(["cat", again.path("note")])).stdout == b"kept\n"
    await again.aclose()
    await later.discard(cell.id)
    await later.aclose()
    assert not server.running


async def test_network_with_rules_is_refused_by_name(backend: CloudBackend, server: ModalServer):
    for policy in (NetworkPolicy(allow=("example.com",)), NetworkPolicy(full=True, deny=("x.y",))):
        spec = CellSpec(image=SPEC.image, network=policy)
        with pytest.raises(UnsupportedByBackend, match="backend modal"):
            await backend.create(new_sandbox_id(), spec)
    assert not server.made or not server.running


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (Fault("status", Status.RESOURCE_EXHAUSTED, "slow down", 60.0), Busy),
        (Fault("status", Status.UNAVAILABLE), BackendUnavailable),
        (Fault("status", Status.UNAUTHENTICATED), BackendUnavailable),
        (Fault("cut"), BackendUnavailable),
        (Fault("hang"), BackendUnavailable),
    ],
    ids=["throttled", "unavailable", "expired", "cut", "hang"],
)
async def test_create_that_fails_is_named_and_leaves_nothing(
    server: ModalServer, tmp_path: Path, fault: Fault, named: type[Exception]
):
    backend = open_on_modal(server, tmp_path, start_s=2.0 if fault.kind == "hang" else 60.0)
    server.faults[CREATE] = fault
    with pytest.raises(named):
        await backend.create(new_sandbox_id(), SPEC)
    assert not server.running
    assert list(await backend.owned()) == []
    await backend.aclose()


async def test_machine_of_a_create_that_was_cut_off_is_found_and_removed(
    backend: CloudBackend, server: ModalServer
):
    # Neither the answer nor any look afterwards arrives, so that the daemon knows nothing of it.
    server.faults[CREATE] = Fault("lost")
    server.faults["SandboxGetFromNameV2"] = Fault("cut")
    sandbox_id = new_sandbox_id()
    with pytest.raises(BackendUnavailable):
        await backend.create(sandbox_id, SPEC)
    assert len(server.running) == 1
    server.faults.clear()
    assert list(await backend.owned()) == [sandbox_id]
    await backend.discard(sandbox_id)
    assert not server.running
    assert list(await backend.owned()) == []


async def test_sandbox_whose_machine_vanished_is_lost(backend: CloudBackend, server: ModalServer):
    cell = await backend.create(new_sandbox_id(), SPEC)
    box = await Box.open(cell)
    await asyncio.to_thread(server.vanish, server.running[0])
    with pytest.raises(SandboxLost):
        await cell.dial()
    with pytest.raises(SandboxLost):
        await backend.attach(cell.id)
    await box.aclose()
    await cell.destroy()
    assert list(await backend.owned()) == []
