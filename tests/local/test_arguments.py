"""The complete arguments of bubblewrap for both ways of mapping ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_runtime.backends.local.bwrap_arguments import (
    BwrapPlatform,
    bwrap_args,
    own_network,
    runner_command,
)
from sandkasten_runtime.linux.storage.host_root import HostRoot

SNAPSHOTS = Path(__file__).with_name("snapshots")
ROOT = HostRoot(
    links=(("bin", "usr/bin"), ("lib", "usr/lib")),
    directories=("lib32",),
    proc_files=("kcore", "keys"),
    proc_dirs=("acpi",),
)


@pytest.mark.parametrize(("name", "ranged"), [("root", True), ("user", False)])
def test_the_arguments_equal_the_expected_ones(name: str, ranged: bool) -> None:
    ground = BwrapPlatform("/stage", ranged, ROOT)
    spec = CellSpec(image=Image("host"), env={"TOKEN": "a\nb"})
    expected = json.loads((SNAPSHOTS / f"{name}.json").read_text())
    assert {"args": bwrap_args(spec, ground), "command": runner_command(spec, ground)} == expected


@pytest.mark.parametrize("ranged", [True, False])
def test_a_closed_network_is_made_by_the_launcher_or_by_bubblewrap(ranged: bool) -> None:
    ground = BwrapPlatform("/stage", ranged, ROOT)
    spec = CellSpec(image=Image("host"))
    assert ("--unshare-net" in bwrap_args(spec, ground)) is not own_network(spec, ground)


def test_the_root_becomes_read_only_after_all_mounts_on_it() -> None:
    args = bwrap_args(CellSpec(image=Image("host")), BwrapPlatform("/stage", True, ROOT))
    last = max(i for i, a in enumerate(args) if a in ("--dir", "--symlink", "--bind", "--ro-bind"))
    assert args.index("/", args.index("--chdir") - 2) > last


def test_only_usr_etc_entries_and_the_stage_of_the_host_are_mounted() -> None:
    args = bwrap_args(CellSpec(image=Image("host")), BwrapPlatform("/stage", True, ROOT))
    sources = {args[i + 1] for i, a in enumerate(args) if a in ("--bind", "--ro-bind")}
    assert sources == {
        "/usr", "/lib32", "/stage/etc", "/stage/runner",
        "/stage/volume/workspace", "/stage/volume/home",
    }  # fmt: skip


def test_only_memory_and_the_quota_volume_are_bound_writable() -> None:
    args = bwrap_args(CellSpec(image=Image("host")), BwrapPlatform("/stage", False, ROOT))
    writable = [args[i + 1] for i, a in enumerate(args) if a == "--bind"]
    memory = ["/stage/shm", "/stage/tmp", "/stage/state"]
    assert writable == [
        *memory,
        "/stage/volume/workspace",
        "/stage/volume/home",
        "/stage/volume/workspace",
    ]
