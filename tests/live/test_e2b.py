"""The backend `e2b` at E2B itself. It costs money: only with TEST_SANDKASTEN_LIVE_E2B=1 and
E2B_API_KEY.

TEST_SANDKASTEN_LIVE_E2B_TEMPLATE names another template than `base`, and
TEST_SANDKASTEN_LIVE_E2B_PROGRAMS a directory with programs for E2B's processors (x86-64).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import SandboxLost
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_contract.box import Box

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten_cloud.backend import CloudBackend

pytestmark = pytest.mark.skipif(
    os.environ.get("TEST_SANDKASTEN_LIVE_E2B") != "1",
    reason="TEST_SANDKASTEN_LIVE_E2B=1 and E2B_API_KEY run it at E2B",
)
TEMPLATE = os.environ.get("TEST_SANDKASTEN_LIVE_E2B_TEMPLATE", "base")


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[CloudBackend]:
    from sandkasten_cloud.e2b.e2b_options import E2bOptions
    from tests.cloud.e2b_service import open_backend

    programs = os.environ.get("TEST_SANDKASTEN_LIVE_E2B_PROGRAMS")
    options = E2bOptions(
        api_key=os.environ["E2B_API_KEY"],
        template=TEMPLATE,
        lifetime_s=300.0,
        programs_dir=Path(programs) if programs else None,
    )
    opened = open_backend(tmp_path, options)
    yield opened
    for one in await opened.owned():
        await opened.discard(one)
    await opened.aclose()


async def test_a_sandbox_at_e2b_runs_commands_and_keeps_files(backend: CloudBackend):
    assert (await backend.probe()).ready
    sandbox_id = new_sandbox_id()
    cell = await backend.create(sandbox_id, CellSpec(image=Image(TEMPLATE, kind="engine")))
    box = await Box.open(cell)
    assert (await box.run("cd /tmp && export A=1; id -u")).stdout == b"1000\n"
    assert (await box.run("echo $A; pwd")).stdout == b"1\n/tmp\n"
    data = os.urandom(1 << 20)
    await box.write("data", data)
    assert await box.read("data") == data
    assert (await box.run(["sudo", "-n", "true"])).exit_code != 0
    assert (await box.run("curl -m 5 -s https://example.com")).exit_code != 0
    await box.aclose()
    again = await Box.open(await backend.attach(sandbox_id))
    assert await again.read("data") == data
    await again.aclose()
    assert list(await backend.owned()) == [sandbox_id]
    await cell.destroy()
    with pytest.raises(SandboxLost):
        await backend.attach(sandbox_id)
    assert not await backend.owned()
