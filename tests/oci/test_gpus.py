"""Devices by the Container Device Interface, in real sandboxes of runc.

The specification describes harmless devices of every Linux as GPUs.
"""

from __future__ import annotations

import json
import os
import stat
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import InvalidConfiguration, PolicyDenied, UnsupportedByBackend
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.gpus import ALL, GpuRequest
from sandkasten_contract.box import Box
from sandkasten_runtime.assembly.settings.settings_file import read_tree
from sandkasten_runtime.backends.oci.backend import OciBackend
from sandkasten_runtime.backends.oci.cdi import DeviceSpecs
from sandkasten_runtime.backends.oci.oci_config import OciPlatform, config
from sandkasten_runtime.linux.storage.host_root import HostRoot

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def vendor(scratch: Path, tmp_path: Path) -> dict[str, Any]:
    """A specification with two devices; `scratch` is on a disk where devices work."""
    nodes = []
    # One that no sandbox may open otherwise (fuse), and one that can be read (zero).
    for name, number in (("control", (10, 229)), ("card", (1, 5))):
        path = scratch / f"{tmp_path.name}-{name}"
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*number))
        path.chmod(0o666)
        nodes.append(path)
    (scratch / f"{tmp_path.name}-lib").write_text("library")
    return {
        "cdiVersion": "0.6.0",
        "kind": "vendor.example/gpu",
        "containerEdits": {
            "env": ["VENDOR_VISIBLE=1"],
            "deviceNodes": [{"path": "/dev/vendorctl", "hostPath": str(nodes[0])}],
            "mounts": [
                {
                    "hostPath": str(scratch / f"{tmp_path.name}-lib"),
                    "containerPath": "/opt/vendor/lib.so",
                    "options": ["ro", "bind"],
                }
            ],
        },
        "devices": [
            {
                "name": name,
                "containerEdits": {
                    "deviceNodes": [{"path": f"/dev/vendor{name}", "hostPath": str(nodes[1])}]
                },
            }
            for name in ("0", "1")
        ],
    }


def written(folder: Path, spec: Any, *, hooks: bool = False) -> DeviceSpecs:
    folder.mkdir(exist_ok=True)
    (folder / "vendor.json").write_text(json.dumps(spec))
    return DeviceSpecs((str(folder / "none"), str(folder)), hooks)


async def test_a_sandbox_has_the_devices_files_and_variables_of_its_gpu(
    scratch: Path, tmp_path: Path, vendor: dict[str, Any]
):
    backend = OciBackend(scratch, "runc", devices=written(tmp_path / "cdi", vendor))
    spec = CellSpec(image=Image("host"), gpus=GpuRequest(1))
    cell = await backend.create(new_sandbox_id(), spec)
    box = await Box.open(cell)
    try:
        look = """
            head -c 3 /dev/vendor0 | od -An -tx1
            exec 3<>/dev/vendorctl && echo opened
            cat /opt/vendor/lib.so; echo; echo $VENDOR_VISIBLE
            ls /dev/vendor1 2>&1; echo x 2>&1 >/opt/vendor/lib.so
            stat -c '%t:%T %a' /dev/vendorctl
        """
        done = await box.run(look)
        lines = done.stdout.decode().splitlines()
        assert lines[:4] == [" 00 00 00", "opened", "library", "1"], lines
        assert "No such file" in lines[4]
        assert "Read-only file system" in lines[5] or "ermission" in lines[5]
        assert lines[6] == "a:e5 666"
    finally:
        await box.aclose()
        await cell.destroy()
    # The twin: without a request there is nothing of it.
    cell = await backend.create(new_sandbox_id(), CellSpec(image=Image("host")))
    box = await Box.open(cell)
    try:
        done = await box.run("ls /dev/vendorctl /opt/vendor 2>&1; echo $VENDOR_VISIBLE")
        assert done.stdout.decode().count("No such file") == 2
    finally:
        await box.aclose()
        await cell.destroy()


@pytest.mark.parametrize(
    ("request_", "nodes"),
    [
        (GpuRequest(1), ["/dev/vendorctl", "/dev/vendor0"]),
        (GpuRequest(2), ["/dev/vendorctl", "/dev/vendor0", "/dev/vendor1"]),
        (GpuRequest(ALL), ["/dev/vendorctl", "/dev/vendor0", "/dev/vendor1"]),
        (GpuRequest(ids=("1",)), ["/dev/vendorctl", "/dev/vendor1"]),
        (GpuRequest(ids=("vendor.example/gpu=1",)), ["/dev/vendorctl", "/dev/vendor1"]),
    ],
)
def test_a_number_all_and_ids_choose_devices(tmp_path, vendor, request_, nodes):
    # Another name for the first device, as some tools write.
    vendor["devices"].append({**vendor["devices"][0], "name": "GPU-serial"})
    specs = written(tmp_path / "cdi", vendor)
    found = specs.edits(request_, host_image=False)
    assert [one.target for one in found.nodes] == nodes
    assert found.env == (("VENDOR_VISIBLE", "1"),)


@pytest.mark.parametrize("request_", [GpuRequest(3), GpuRequest(ids=("7",))])
def test_a_gpu_that_does_not_exist_is_refused_by_name(tmp_path, vendor, request_):
    specs = written(tmp_path / "cdi", vendor)
    with pytest.raises(UnsupportedByBackend) as refused:
        specs.edits(request_, host_image=False)
    assert ("has 2" in refused.value.message) or ("no GPU '7'" in refused.value.message)
    with pytest.raises(UnsupportedByBackend, match="no GPU is described") as refused:
        DeviceSpecs((str(tmp_path / "none"),)).edits(GpuRequest(1), host_image=False)
    assert "nvidia-ctk cdi generate" in refused.value.hint


def changed(vendor: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**vendor, "containerEdits": {**vendor["containerEdits"], name: value}}


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("deviceNodes", [{"path": "/etc/x", "hostPath": "/dev/zero"}], "not below /dev"),
        ("deviceNodes", [{"path": "/dev/../etc/x", "hostPath": "/dev/zero"}], "not below /dev"),
        ("deviceNodes", [{"path": "/dev/x", "hostPath": "/etc/passwd"}], "not a character device"),
        ("deviceNodes", [{"path": "/dev/x", "hostPath": "/nonexistent"}], "missing"),
        ("deviceNodes", [{"path": "/dev/x", "hostPath": "/dev/loop-control"}], "other users"),
        ("deviceNodes", {"path": "/dev/x"}, "not a list"),
        ("mounts", [{"hostPath": "/etc", "containerPath": "/proc/x"}], "mounts itself"),
        ("mounts", [{"hostPath": "/etc", "containerPath": "../x"}], "absolute"),
        ("mounts", [{"hostPath": "/nonexistent", "containerPath": "/opt/x"}], "missing"),
        ("env", ["novalue"], "not a variable"),
        ("hooks", [{"hookName": "later", "path": "/bin/true"}], "hook"),
    ],
)
def test_edits_that_no_sandbox_may_have_are_refused(tmp_path, vendor, name, value, why):
    specs = written(tmp_path / "cdi", changed(vendor, name, value), hooks=True)
    with pytest.raises(UnsupportedByBackend, match=why):
        specs.edits(GpuRequest(1), host_image=False)


def test_hooks_run_only_if_the_operator_allows_it(tmp_path, vendor):
    hook = {"hookName": "createContainer", "path": "/usr/bin/tool", "args": ["tool", "x"]}
    spec = changed(vendor, "hooks", [hook])
    with pytest.raises(PolicyDenied) as refused:
        written(tmp_path / "cdi", spec).edits(GpuRequest(1), host_image=False)
    assert refused.value.details["rule"] == "oci.cdi_hooks"
    edits = written(tmp_path / "cdi", spec, hooks=True).edits(GpuRequest(1), host_image=False)
    platform = OciPlatform("runc", "/mnt", 100_000, HostRoot((), (), (), ()), devices=edits)
    made = config(CellSpec(image=Image("a", "layers")), platform)
    assert made["hooks"] == {"createContainer": [{"path": "/usr/bin/tool", "args": ["tool", "x"]}]}


def test_a_specification_may_be_yaml_and_must_be_one(tmp_path):
    folder = tmp_path / "cdi"
    folder.mkdir()
    (folder / "v.yaml").write_text(
        "cdiVersion: 0.6.0\nkind: v.example/gpu\n"
        "devices:\n- name: all\n  containerEdits:\n    deviceNodes:\n    - path: /dev/zero\n"
    )
    (folder / "net.json").write_text('{"kind": "v.example/net", "devices": []}')
    specs = DeviceSpecs((str(folder),), read_yaml=partial(read_tree, max_depth=12))
    found = specs.edits(GpuRequest(ALL), host_image=True)
    assert [one.target for one in found.nodes] == ["/dev/zero"]
    (folder / "v.yaml").write_text("kind: 7\n")
    with pytest.raises(InvalidConfiguration, match=r"v\.yaml"):
        specs.edits(GpuRequest(ALL), host_image=True)


async def test_gvisor_has_no_gpus(scratch: Path):
    backend = OciBackend(scratch, "runsc")
    with pytest.raises(UnsupportedByBackend, match="gvisor"):
        await backend.create(new_sandbox_id(), CellSpec(image=Image("host"), gpus=GpuRequest(1)))
    assert await backend.owned() == []
