"""The config.json of a sandbox, compared with snapshots, and the rules that each must keep.

`python -m tests.oci.test_config` writes the snapshots again; review the difference.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import RUNNER_ID, CellSpec, HostMount
from sandkasten_runtime.backends.oci.oci_config import OciPlatform, places
from sandkasten_runtime.backends.oci.oci_config import config as config_of
from sandkasten_runtime.linux.confinement import id_ranges, seccomp_oci
from sandkasten_runtime.linux.storage.host_root import HostRoot

SNAPSHOTS = Path(__file__).with_name("snapshots")
BASE = id_ranges.base_of(7)
HOST = HostRoot(
    links=(("bin", "usr/bin"), ("lib64", "usr/lib64")),
    directories=("lib32",),
    proc_files=("kcore", "keys"),
    proc_dirs=("acpi",),
)
LAYERS = Image("debian", "layers", ("/images/a/tree", "/images/b/tree"), "sha256:b")
SPECS = {
    "host": CellSpec(image=Image("host")),
    "layers": CellSpec(
        image=LAYERS, env={"A": "b"}, mounts=(HostMount("/srv/data", "/data"),), hostname="box"
    ),
    "dev": CellSpec(image=LAYERS, profile="dev"),
}


def ground(kind: str) -> OciPlatform:
    on_host = kind == "runc"
    # The filter has a test of its own, and three hundred names.
    filters = {"defaultAction": "SCMP_ACT_ERRNO"} if on_host else None
    path = "/sandkasten/sbx_x" if on_host else None
    return OciPlatform(kind, "/mnt", BASE, HOST, path, filters)  # type: ignore[arg-type]


def config(spec: CellSpec, on: OciPlatform) -> Any:
    return config_of(spec, on)


def made(kind: str, spec: str) -> dict[str, object]:
    return {
        "config": config(SPECS[spec], ground(kind)),
        "places": [[p.path, oct(p.mode), p.directory] for p in places(SPECS[spec], ground(kind))],
    }


EVERY = [(kind, spec) for kind in ("runc", "gvisor") for spec in SPECS]


@pytest.mark.parametrize(("kind", "spec"), EVERY)
def test_the_config_equals_its_snapshot(kind: str, spec: str):
    wanted = json.loads((SNAPSHOTS / f"{kind}-{spec}.json").read_text())
    assert json.loads(json.dumps(made(kind, spec))) == wanted


@pytest.mark.parametrize(("kind", "spec"), EVERY)
def test_host_id_zero_is_never_mapped(kind: str, spec: str):
    linux = config(SPECS[spec], ground(kind))["linux"]
    for field in ("uidMappings", "gidMappings"):
        assert linux[field] == [{"containerID": 0, "hostID": BASE, "size": 65536}]


@pytest.mark.parametrize(("kind", "spec"), EVERY)
def test_every_namespace_is_the_sandboxs_own(kind: str, spec: str):
    linux = config(SPECS[spec], ground(kind))["linux"]
    kinds = {"pid", "network", "ipc", "uts", "mount", "cgroup", "user"}
    assert {one["type"] for one in linux["namespaces"]} == kinds
    # The only one that is joined is the one that the launcher has made for it.
    assert {one["path"] for one in linux["namespaces"] if "path" in one} <= {"/mnt/userns"}


@pytest.mark.parametrize(("kind", "spec"), EVERY)
def test_no_mount_reveals_the_host(kind: str, spec: str):
    for mount in config(SPECS[spec], ground(kind))["mounts"]:
        assert mount["type"] not in ("sysfs", "cgroup", "cgroup2")
        assert {"nosuid"} <= set(mount["options"])
        if mount["type"] == "bind":
            assert mount["source"].startswith(("/mnt/", "/usr", "/lib32"))
            writable = ("/workspace", "/home/sandbox", "/run/sandkasten/listen")
            assert ("rw" in mount["options"]) == (mount["destination"] in writable)


@pytest.mark.parametrize(("kind", "spec"), EVERY)
def test_every_mount_has_a_mount_point(kind: str, spec: str):
    known = [place.path for place in places(SPECS[spec], ground(kind))]
    for mount in config(SPECS[spec], ground(kind))["mounts"]:
        # Below /dev the runtime has a file system of its own by then.
        if not mount["destination"].startswith("/dev/"):
            assert mount["destination"] in known


def test_only_the_dev_profile_can_write_its_root():
    for kind, spec in EVERY:
        assert config(SPECS[spec], ground(kind))["root"]["readonly"] == (spec != "dev")
        # The operator's defaults.readonly_rootfs: false, which the host image cannot follow.
        asked = replace(SPECS[spec], writable_root=True)
        readonly = config(asked, ground(kind))["root"]["readonly"]
        assert readonly == (asked.image.kind == "host" and spec != "dev")


def test_the_runner_gets_the_four_capabilities_it_needs_and_no_other():
    process = config(SPECS["host"], ground("runc"))["process"]
    assert process["user"]["uid"] == RUNNER_ID
    assert process["noNewPrivileges"] is True
    for held in process["capabilities"].values():
        assert held == ["CAP_KILL", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID"]


def test_the_seccomp_filter_is_generated_from_the_lists():
    profile = seccomp_oci.profile("x86_64")
    made = config(SPECS["host"], OciPlatform("runc", "/mnt", BASE, HOST, "/sandkasten/x", profile))
    assert made["linux"]["seccomp"] == profile


if __name__ == "__main__":
    for one_kind, one_spec in EVERY:
        text = json.dumps(made(one_kind, one_spec), indent=1) + "\n"
        (SNAPSHOTS / f"{one_kind}-{one_spec}.json").write_text(text)


@pytest.mark.parametrize("kind", ["runc", "gvisor"])
def test_the_workspace_is_the_home_of_programs_for_e2b_where_the_image_leaves_it_free(kind: str):
    for free in (True, False):
        spec = CellSpec(image=replace(LAYERS, home_is_free=free))
        sources = {
            one["destination"]: one["source"] for one in config(spec, ground(kind))["mounts"]
        }
        home = sources.get("/home/user")
        assert (home == sources["/workspace"]) is free
        assert (home is None) is not free
        assert ("/home/user" in [one.path for one in places(spec, ground(kind))]) is free
