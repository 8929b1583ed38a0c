"""The container of a sandbox, compared with snapshots, and the rules that each must keep.

`python -m plugins.docker.tests.test_config` writes the snapshots again; review the difference.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.ids import SandboxId
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec, HostMount, HostOwner, home
from sandkasten.model.sandbox.gpus import ALL, GpuRequest
from sandkasten.model.sandbox.limits import Limits
from sandkasten_docker import (
    container_config,
    probe,
    resource_names,
    session_volumes,
)
from sandkasten_docker.container_config import ContainerMount, ContainerPlatform
from sandkasten_docker.content_volumes import bound_mount
from sandkasten_docker.session_volumes import SessionVolumes
from sandkasten_runtime.linux.confinement import capabilities

SNAPSHOTS = Path(__file__).with_name("snapshots")
ID = SandboxId("sbx_0123456789abcdef")
PLACES = {
    "bind": SessionVolumes("bind", "", "/data/docker/cells", "/data/docker/cells", direct=True),
    "volume": SessionVolumes("volume", ""),
    "shared": SessionVolumes(
        "shared", "", "/shared", "/var/lib/docker/volumes/s/_data", direct=True
    ),
    "archive": SessionVolumes("archive", ""),
}
RUNNER = ContainerMount("volume", "sandkasten-runner-0", resource_names.BIN_DIR, read_only=True)
SPEC = CellSpec(image=Image("python", "engine"), env={"A": "b"}, hostname="box")
DEV = CellSpec(image=Image("python", "engine"), profile="dev")


def made(mode: str, spec: CellSpec = SPEC, *, sockets: bool = False) -> dict[str, Any]:
    archive = mode == "archive"
    mounted = session_volumes.mounts(PLACES[mode], ID, home=home(spec))
    ground = ContainerPlatform(
        owner="0011",
        image="python:3",
        mounts=mounted if archive else (RUNNER, *mounted),
        # The filter has a test of its own, and three hundred names.
        seccomp={"defaultAction": "SCMP_ACT_ERRNO"},
        given=mode != "volume",
        writable_root=archive,
        separate_sockets=sockets,
        version="0",
    )
    return container_config.container(ID, spec, ground)


def snapshot(mode: str) -> Path:
    return SNAPSHOTS / f"{mode}.json"


@pytest.mark.parametrize("mode", PLACES)
def test_a_container_equals_its_snapshot(mode: str):
    assert made(mode) == json.loads(snapshot(mode).read_text())


@pytest.mark.parametrize("mode", PLACES)
def test_only_the_capabilities_the_runner_needs_are_kept(mode: str):
    host = made(mode)["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    names = {f"CAP_{name}" for name in host["CapAdd"]}
    # What an engine makes belongs to root until the runner gives it away; then it steps down.
    assert names == {*capabilities.RUNNER, *(["CAP_CHOWN"] if mode == "volume" else [])}
    assert ("--own" in made(mode)["Entrypoint"]) == (mode == "volume")
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert any(option.startswith("seccomp={") for option in host["SecurityOpt"])
    assert not host["Privileged"]
    assert host["NetworkMode"] == "none"
    assert host["IpcMode"] == host["CgroupnsMode"] == "private"
    assert host["RestartPolicy"] == {"Name": "no"}
    assert "/sys" in host["MaskedPaths"]


@pytest.mark.parametrize("mode", PLACES)
def test_every_limit_is_passed_to_the_engine(mode: str):
    limits = Limits(cpus=0.5, memory_bytes=64 << 20, pids=17, tmp_bytes=1 << 20, open_files=99)
    host = made(mode, CellSpec(image=Image("python", "engine"), limits=limits))["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 64 << 20
    assert host["PidsLimit"] == 17
    assert host["NanoCpus"] == 500_000_000
    assert host["ShmSize"] == 1 << 20
    assert "size=1048576" in host["Tmpfs"]["/tmp"]
    assert {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]} == {"core": 0, "nofile": 99}


@pytest.mark.parametrize("mode", ["bind", "volume", "shared"])
def test_the_root_is_read_only_and_what_is_written_to_is_mounted(mode: str):
    host = made(mode)["HostConfig"]
    assert host["ReadonlyRootfs"]
    spec = replace(SPEC, image=Image("python", "engine"), writable_root=True)
    assert not made(mode, spec)["HostConfig"]["ReadonlyRootfs"]
    mounted = {mount["Target"]: mount["ReadOnly"] for mount in host["Mounts"]}
    assert mounted[resource_names.BIN_DIR] is True
    assert mounted["/workspace"] is mounted["/home/sandbox"] is False
    everywhere = {*mounted, *host["Tmpfs"]}
    assert {"/tmp", "/run", resource_names.STATE_DIR, resource_names.LISTEN_DIR} <= everywhere


def test_the_operators_directory_is_bound_per_session_and_nothing_else():
    place = SessionVolumes("directory", "", engine="/sandboxes")
    mounted = session_volumes.mounts(place, ID)
    ground = ContainerPlatform(owner="0011", image="p", mounts=(RUNNER, *mounted), seccomp={})
    host = container_config.container(ID, SPEC, ground)["HostConfig"]
    assert host["Binds"] == [
        f"/sandboxes/{ID}/workspace:/workspace:rprivate",
        f"/sandboxes/{ID}/home:/home/sandbox:rprivate",
    ]
    assert [mount["Target"] for mount in host["Mounts"]] == [resource_names.BIN_DIR]


def test_no_engine_socket_and_no_device_is_mounted():
    for mode in PLACES:
        text = json.dumps(made(mode))
        assert "docker.sock" not in text
        assert "Devices" not in text
        assert "Binds" not in text


def test_a_session_on_a_shared_volume_gets_only_its_own_directory():
    sources = [
        mount["Source"]
        for mount in made("shared")["HostConfig"]["Mounts"]
        if mount["Type"] == "bind"
    ]
    assert sources
    assert all(source.startswith(f"{PLACES['shared'].engine}/{ID}/") for source in sources)


def test_a_named_volume_is_not_filled_from_the_image():
    volumes = [
        mount for mount in made("volume")["HostConfig"]["Mounts"] if mount["Type"] == "volume"
    ]
    assert len(volumes) == 3
    assert all(mount["VolumeOptions"]["NoCopy"] for mount in volumes)


def test_socket_buffers_get_a_limit_of_their_own_only_on_cgroup_v1():
    v1, v2 = ({"CgroupVersion": version} for version in ("1", "2"))
    assert [probe.separate_sockets(info) for info in (v1, v2, {})] == [True, False, False]
    assert "KernelMemoryTCP" not in made("volume")["HostConfig"]
    limit = made("volume", sockets=True)["HostConfig"]["KernelMemoryTCP"]
    assert limit == SPEC.limits.memory_bytes // 4
    cases = ((v1, False), (v1, True), (v2, False))
    lines = [probe.socket_memory(info, local=local) for info, local in cases]
    assert [(line.ok, line.state) for line in lines] == [
        (False, "cgroup v1: runc does not limit it"),
        (True, "cgroup v1: limited from this machine"),
        (True, "part of the memory limit"),
    ]


def test_the_dev_profile_is_root_with_what_package_managers_need():
    config = made("volume", DEV)
    assert not config["HostConfig"]["ReadonlyRootfs"]
    assert "SYS_ADMIN" not in config["HostConfig"]["CapAdd"]
    assert "--user-capabilities" in config["Entrypoint"]


def test_a_label_is_a_valid_sandbox_id_or_ignored():
    assert resource_names.id_in("sbx_0123456789abcdef") == ID
    for text in ("", "sbx_", "../etc", "sbx_0123456789abcdeg", "sbx_0123456789abcdef\n", "x" * 99):
        assert resource_names.id_in(text) is None


@pytest.mark.promise("P83")
def test_a_writable_mount_must_belong_to_the_user_of_the_container():
    """A Docker Engine does not shift ids, and follows links on its way to a source."""
    mount = HostMount("/srv/code", "/code", below="", owner=HostOwner(1000, 1000))
    assert bound_mount(mount, 1000) == ContainerMount("bind", "/srv/code", "/code")
    assert bound_mount(replace(mount, owner=None), 0).read_only
    for variant, user in (
        (replace(mount, owner=HostOwner(4321, 1000)), 1000),
        (mount, 0),
        (replace(mount, below="sub"), 1000),
    ):
        with pytest.raises(UnsupportedByBackend) as refused:
            bound_mount(variant, user)
        assert "backend local" in refused.value.hint


if __name__ == "__main__":
    SNAPSHOTS.mkdir(exist_ok=True)
    for each in PLACES:
        snapshot(each).write_text(json.dumps(made(each), indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize(
    ("gpus", "request_"),
    [
        (GpuRequest(2), {"Driver": "", "Count": 2, "Capabilities": [["gpu"]]}),
        (GpuRequest(ALL), {"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}),
        (
            GpuRequest(ids=("0", "GPU-3a")),
            {"Driver": "", "DeviceIDs": ["0", "GPU-3a"], "Capabilities": [["gpu"]]},
        ),
        (
            GpuRequest(ids=("nvidia.com/gpu=0",)),
            {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]},
        ),
    ],
)
def test_gpus_are_a_device_request_of_the_engine(gpus, request_):
    assert made("volume", replace(SPEC, gpus=gpus))["HostConfig"]["DeviceRequests"] == [request_]
    assert "DeviceRequests" not in made("volume")["HostConfig"]
