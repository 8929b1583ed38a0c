"""Sandboxes at Modal itself, with your own account: TEST_SANDKASTEN_LIVE_MODAL=1."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import SandboxLost
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.limits import Limits
from sandkasten.model.sandbox.network_policy import CLOSED, NetworkPolicy
from sandkasten_cloud.backend import CloudBackend
from sandkasten_cloud.machine_records import MachineRecords
from sandkasten_cloud.modal.modal_capabilities import MODAL
from sandkasten_cloud.modal.modal_options import ModalOptions
from sandkasten_cloud.modal.modal_provider import ModalProvider
from sandkasten_contract.box import Box

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("TEST_SANDKASTEN_LIVE_MODAL") != "1",
        reason="needs an account at Modal and TEST_SANDKASTEN_LIVE_MODAL=1",
    ),
    # An image may have to be built.
    pytest.mark.timeout(900),
]
IMAGE = Image("python:3.12-slim-bookworm", "engine")
_REACHES_OUT = ("python3", "-c", "import socket; socket.create_connection(('1.1.1.1', 443), 5)")


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[CloudBackend]:
    app = f"sandkasten-live-{secrets.token_hex(4)}"
    options = ModalOptions(app=app, lifetime_s=600.0, start_s=600.0)
    records = MachineRecords(tmp_path)
    owner = records.owner()
    opened = CloudBackend(ModalProvider(options, owner), records, owner, options, MODAL)
    yield opened
    for sandbox_id in await opened.owned():
        await opened.discard(sandbox_id)
    await opened.aclose()


async def test_sandbox_runs_commands_without_a_network_and_ends(backend: CloudBackend):
    readiness = await backend.probe()
    assert readiness.ready, readiness.reason
    spec = CellSpec(image=IMAGE, limits=Limits(cpus=0.25, memory_bytes=256 << 20), network=CLOSED)
    cell = await backend.create(new_sandbox_id(), spec)
    assert list(await backend.owned()) == [cell.id]
    box = await Box.open(await backend.attach(cell.id))
    assert (await box.run(["python3", "-c", "print(6 * 7)"])).stdout == b"42\n"
    assert (await box.run(["id", "-u"])).stdout == b"1000\n"
    assert (await box.run(["cat", "/opt/sandkasten/keys/token"])).exit_code != 0
    assert (await box.run(_REACHES_OUT)).exit_code != 0
    await box.aclose()
    await cell.destroy()
    with pytest.raises(SandboxLost):
        await backend.attach(cell.id)


async def test_network_that_was_asked_for_is_there(backend: CloudBackend):
    cell = await backend.create(
        new_sandbox_id(), CellSpec(image=IMAGE, network=NetworkPolicy(full=True))
    )
    box = await Box.open(cell)
    assert (await box.run(_REACHES_OUT)).exit_code == 0
    await box.aclose()
    await cell.destroy()
