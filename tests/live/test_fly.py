"""Fly itself, with an account: `TEST_SANDKASTEN_LIVE_FLY=1 pytest tests/live/test_fly.py`.

It makes a machine for a minute or two. Variables: FLY_API_TOKEN (a deploy token),
SANDKASTEN_FLY_APP, and SANDKASTEN_FLY_IMAGE, an image with our programs (docs/guides/cloud.md);
SANDKASTEN_FLY_REACH and SANDKASTEN_FLY_ADDRESS are optional. It has not been run yet.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import pytest

from sandkasten.errors import SandboxLost
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.network_policy import NetworkPolicy
from sandkasten_cloud.backend import CloudBackend
from sandkasten_cloud.fly.fly_capabilities import FLY
from sandkasten_cloud.fly.fly_options import FlyOptions, Reach
from sandkasten_cloud.fly.fly_provider import FlyProvider
from sandkasten_cloud.machine_records import MachineRecords
from sandkasten_contract.box import Box

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    os.environ.get("TEST_SANDKASTEN_LIVE_FLY") != "1",
    reason="needs an account: TEST_SANDKASTEN_LIVE_FLY=1",
)


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[CloudBackend]:
    options = FlyOptions(
        app=os.environ["SANDKASTEN_FLY_APP"],
        api_token=os.environ["FLY_API_TOKEN"],
        reach=cast("Reach", os.environ.get("SANDKASTEN_FLY_REACH", "service")),
        address=os.environ.get("SANDKASTEN_FLY_ADDRESS", ""),
        lifetime_s=300,
    )
    records = MachineRecords(tmp_path / "fly")
    owner = records.owner()
    opened = CloudBackend(FlyProvider(options, owner), records, owner, options, FLY)
    yield opened
    for sandbox_id in await opened.owned():
        await opened.discard(sandbox_id)
    await opened.aclose()


def _spec(*, network: bool) -> CellSpec:
    image = Image(os.environ["SANDKASTEN_FLY_IMAGE"], kind="engine")
    return CellSpec(image=image, network=NetworkPolicy(full=network))


@pytest.mark.parametrize("network", [False, True], ids=["none", "full"])
async def test_a_machine_of_fly_is_a_sandbox(backend: CloudBackend, network: bool):
    readiness = await backend.probe()
    assert readiness.ready, f"{readiness.reason} ({readiness.remedy})"
    sandbox_id = new_sandbox_id()
    cell = await backend.create(sandbox_id, _spec(network=network))
    box = await Box.open(cell)
    ran = await box.run(["sh", "-c", "id -u; cat /.fly/api 2>&1; tail -n +3 /proc/net/dev"])
    said = b"".join(one.data for one in ran.chunks).decode()
    assert said.startswith("1000\n")
    assert "denied" in said or "No such file" in said
    assert ("eth0" in said) == network
    await box.aclose()
    again = await Box.open(await backend.attach(sandbox_id))
    await again.aclose()
    await cell.destroy()
    assert sandbox_id not in await backend.owned()
    with pytest.raises(SandboxLost):
        await backend.attach(sandbox_id)
