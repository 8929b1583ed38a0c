"""Host volumes are removed although sandboxes started while they were mounted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import Volume
from sandkasten.model.sandbox.limits import MIB
from sandkasten_runtime.linux.state_layout import Layout, read_pid
from sandkasten_runtime.linux.storage import host_volume, mountinfo, workspace_image
from tests.linux.hostvolumes import nothing_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root
HOST = Image("host")
USER = 1000


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "v"
    host_volume.release(tmp_path / "v")


@pytest.mark.promise("P29")
def test_a_sandbox_started_meanwhile_has_no_copy_of_the_mount(make_box, data_dir, place):
    host_volume.make(place, 8 * MIB, owner=USER, templates=place.parent)
    with make_box(HOST) as box:
        known = read_pid(Layout(data_dir).cell(box.id))
        assert known is not None
        inside = mountinfo.parse(Path(f"/proc/{known[0]}/mountinfo").read_bytes())
        assert [
            m for m in inside if m.device == workspace_image.device_of(f"{place}/volume.img")
        ] == []
        host_volume.release(place)
        nothing_of(place)
        assert box.exec("echo alive").text == "alive\n"


@pytest.mark.promise("P22")
def test_a_local_and_an_engine_sandbox_share_a_kept_workspace(make_box, place, tmp_path):
    image = tmp_path / "kept"
    workspace_image.copy_template(workspace_image.template(tmp_path, 64 * MIB), image)
    volume = Volume(os.fspath(image), "image")
    with make_box(HOST, workspace=volume) as box:
        box.exec("echo from here > /workspace/x")
        device = workspace_image.device_of(volume.path)
        shown = host_volume.open_kept(place, volume, owner=USER)
        assert workspace_image.device_of(volume.path) == device
        assert (shown.workspace / "x").read_text() == "from here\n"
        (shown.workspace / "y").write_text("from there\n")
        # Does not wait for the sandbox that still has it.
        host_volume.release(place, timeout_s=0.0)
        assert box.exec("cat /workspace/y").text == "from there\n"
    assert workspace_image.device_of(volume.path) is None
