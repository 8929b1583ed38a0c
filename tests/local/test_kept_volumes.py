"""Workspaces that outlive a sandbox: ids as inside, one device, unmounted after destroy."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import Volume
from sandkasten.model.sandbox.limits import MIB
from sandkasten_runtime.linux.storage import workspace_image

pytestmark = [pytest.mark.root, pytest.mark.promise("P22")]
HOST = Image("host")


@pytest.fixture
def volume(disk_path: Path) -> Volume:
    path = disk_path / "volume"
    workspace_image.copy_template(workspace_image.template(disk_path, 64 * MIB), path)
    return Volume(str(path), "image")


def devices(volume: Volume) -> list[str]:
    found = []
    for device in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if device.read_text().strip() == volume.path:
                found.append(device.parts[3])
        except OSError:
            continue
    return found


def sound(volume: Volume) -> bool:
    done = subprocess.run(["e2fsck", "-fn", volume.path], capture_output=True, check=False)
    return done.returncode == 0


def owner_on_disk(volume: Volume, path: str) -> str:
    said = subprocess.run(
        ["debugfs", "-R", f"stat {path}", volume.path], capture_output=True, text=True, check=True
    ).stdout
    return said.split("User:")[1].split()[0]


def test_written_files_persist_for_the_next_sandbox(make_box, volume, busybox):
    with make_box(HOST, workspace=volume) as box:
        box.exec("echo one > /workspace/x; echo two > ~/y; chmod 600 /workspace/x")
        first = box.host_ids
    assert owner_on_disk(volume, "workspace/x") == "1000"
    # Another range of ids, another image, the same files.
    with make_box(busybox, workspace=volume) as box:
        assert box.host_ids != first
        assert box.exec("cat /workspace/x ~/y && echo three >> /workspace/x").text == "one\ntwo\n"
        assert box.exec(["stat", "-c", "%u:%g", "/workspace/x"]).text == "1000:1000\n"
    assert os.path.exists(volume.path)


def test_a_kept_volume_is_unmounted_when_destroy_returns(make_box, volume):
    with make_box(HOST, workspace=volume) as box:
        assert len(devices(volume)) == 1
        box.exec("head -c 20M /dev/urandom > /workspace/big")
        box.destroy()
        assert devices(volume) == []
        assert not workspace_image.attached(volume.path)
        assert sound(volume)
    with make_box(HOST, workspace=volume) as box:
        assert box.exec(["stat", "-c", "%s", "/workspace/big"]).text == "20971520\n"


def test_concurrent_sandboxes_share_one_loop_device(make_box, volume):
    with make_box(HOST, workspace=volume) as one, make_box(HOST, workspace=volume) as two:
        assert len(devices(volume)) == 1
        one.exec("echo from one > /workspace/x")
        assert two.exec("cat /workspace/x; echo and two >> /workspace/x").text == "from one\n"
        assert one.exec("cat /workspace/x").text == "from one\nand two\n"
        one.destroy()
        assert two.exec("cat /workspace/x").text == "from one\nand two\n"
        assert len(devices(volume)) == 1
        two.destroy()
        assert devices(volume) == []
    assert sound(volume)


def test_a_kept_volume_has_its_own_quota(make_box, volume):
    with make_box(HOST, workspace=volume) as box:
        answer = box.exec("head -c 100M /dev/zero > /workspace/big")
        assert b"No space left" in answer.stderr


def test_changes_to_a_dev_root_do_not_fill_the_kept_volume(make_box, volume, debian):
    with make_box(debian, workspace=volume, profile="dev") as box:
        box.exec("head -c 10M /dev/zero > /usr/big; echo x > /workspace/x")
        assert box.exec("id -u; stat -c %u /workspace/x").text == "0\n0\n"
    assert sound(volume)
    listing = subprocess.run(
        ["debugfs", "-R", "ls -p /", volume.path], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split("/")[5] for line in listing.splitlines() if line.count("/") > 5}
    assert names == {".", "..", "lost+found", "workspace", "home"}


def test_a_directory_is_bound_and_kept(make_box, tmp_path):
    place = tmp_path / "kept"
    place.mkdir()
    with make_box(HOST, workspace=Volume(str(place), "directory")) as box:
        box.exec("echo x > /workspace/x")
    assert (place / "workspace" / "x").read_text() == "x\n"
    assert (place / "workspace" / "x").stat().st_uid == 1000


def test_a_failed_create_leaves_the_kept_volume_unmounted(make_box, volume, tmp_path):
    broken = Image("gone", "layers", (str(tmp_path / "nowhere"),))
    with pytest.raises(Exception, match="image"), make_box(broken, workspace=volume):
        pass
    assert devices(volume) == []
    assert os.path.exists(volume.path)
