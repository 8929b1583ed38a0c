"""A volume mounted on the host goes for certain, although sandboxes began while it was there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.linux import hostvolume, mountinfo, quota
from sandkasten.linux.layout import Layout, read_pid
from sandkasten.model.image import Image
from sandkasten.model.limits import MIB
from sandkasten.model.spec import Volume
from tests.linux.hostvolumes import nothing_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root
HOST = Image("host")
USER = 1000


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "v"
    hostvolume.release(tmp_path / "v")


@pytest.mark.promise("P29")
def test_a_sandbox_that_began_meanwhile_has_no_copy_of_it(make_box, data_dir, place):
    hostvolume.make(place, 8 * MIB, owner=USER)
    with make_box(HOST) as box:
        known = read_pid(Layout(data_dir).cell(box.id))
        assert known is not None
        inside = mountinfo.parse(Path(f"/proc/{known[0]}/mountinfo").read_bytes())
        assert [m for m in inside if m.device == quota.device_of(f"{place}/volume.img")] == []
        hostvolume.release(place)
        nothing_of(place)
        assert box.exec("echo alive").text == "alive\n"


@pytest.mark.promise("P22")
def test_a_sandbox_here_and_one_of_an_engine_share_a_kept_workspace(make_box, place, tmp_path):
    image = tmp_path / "kept"
    quota.copy_sparse(quota.template(tmp_path, 64 * MIB), image)
    volume = Volume(os.fspath(image), "image")
    with make_box(HOST, workspace=volume) as box:
        box.exec("echo from here > /workspace/x")
        device = quota.device_of(volume.path)
        shown = hostvolume.open_kept(place, volume, owner=USER)
        assert quota.device_of(volume.path) == device
        assert (shown.workspace / "x").read_text() == "from here\n"
        (shown.workspace / "y").write_text("from there\n")
        # Does not wait for the sandbox that still has it.
        hostvolume.release(place, timeout_s=0.0)
        assert box.exec("cat /workspace/y").text == "from there\n"
    assert quota.device_of(volume.path) is None
