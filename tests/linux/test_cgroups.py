"""The mapping from limits to control files, for every cgroup layout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandkasten.model.sandbox.limits import Limits
from sandkasten.model.sandbox.usage import Usage
from sandkasten_runtime.linux.cgroup import cgroups
from sandkasten_runtime.linux.cgroup.cgroups import CgroupPlan, Hierarchies, Write, parse_mounts

# Captured on Debian 12, kernel 6.18 (hybrid) and on Debian 13 with systemd 257 (unified).
HYBRID = """\
26 25 0:23 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
27 26 0:24 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
28 26 0:25 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
31 26 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 26 0:30 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
36 26 0:33 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
38 26 0:35 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = """\
30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
"""
LEGACY = """\
33 25 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:13 - cgroup cgroup rw,cpu,cpuacct
35 25 0:32 / /sys/fs/cgroup/memory rw,nosuid shared:15 - cgroup cgroup rw,memory
"""
LIMITS = Limits(cpus=1.5, memory_bytes=1 << 28, pids=64)


def test_hybrid_limits_go_to_v1_and_killing_to_v2() -> None:
    planned = cgroups.plan(parse_mounts(HYBRID, ""), "sbx_1", LIMITS)
    root = "/sys/fs/cgroup"
    assert planned == CgroupPlan(
        directories=(
            f"{root}/memory/sandkasten/sbx_1",
            f"{root}/pids/sandkasten/sbx_1",
            f"{root}/cpu/sandkasten/sbx_1",
            f"{root}/cpuacct/sandkasten/sbx_1",
            f"{root}/freezer/sandkasten/sbx_1",
            f"{root}/unified/sandkasten/sbx_1",
        ),
        writes=(
            Write(f"{root}/memory/sandkasten/sbx_1/memory.limit_in_bytes", "268435456"),
            Write(
                f"{root}/memory/sandkasten/sbx_1/memory.memsw.limit_in_bytes",
                "268435456",
                optional=True,
            ),
            Write(
                f"{root}/memory/sandkasten/sbx_1/memory.kmem.tcp.limit_in_bytes",
                "67108864",
                optional=True,
            ),
            Write(f"{root}/pids/sandkasten/sbx_1/pids.max", "64"),
            Write(f"{root}/cpu/sandkasten/sbx_1/cpu.cfs_period_us", "100000"),
            Write(f"{root}/cpu/sandkasten/sbx_1/cpu.cfs_quota_us", "150000"),
        ),
        tasks=tuple(
            f"{root}/{c}/sandkasten/sbx_1/tasks"
            for c in ("memory", "pids", "cpu", "cpuacct", "freezer")
        ),
        v2_directory=f"{root}/unified/sandkasten/sbx_1",
        missing=(),
    )


def test_a_unified_hierarchy_uses_one_directory() -> None:
    planned = cgroups.plan(parse_mounts(UNIFIED, "cpuset cpu io memory pids"), "sbx_1", LIMITS)
    at = "/sys/fs/cgroup/sandkasten/sbx_1"
    assert planned == CgroupPlan(
        directories=(at,),
        writes=(
            Write(f"{at}/memory.max", "268435456"),
            Write(f"{at}/memory.swap.max", "0", optional=True),
            Write(f"{at}/memory.oom.group", "0", optional=True),
            Write(f"{at}/pids.max", "64"),
            Write(f"{at}/cpu.max", "150000 100000"),
        ),
        tasks=(),
        v2_directory=at,
        missing=(),
    )


def test_v1_usage_includes_the_buffers_of_sockets(tmp_path: Path) -> None:
    group = tmp_path / "sandkasten" / "sbx_1"
    group.mkdir(parents=True)
    for name, text in {
        "memory.usage_in_bytes": "1000\n",
        "memory.max_usage_in_bytes": "2000\n",
        "memory.kmem.tcp.usage_in_bytes": "300\n",
        "memory.kmem.tcp.max_usage_in_bytes": "400\n",
    }.items():
        (group / name).write_text(text)
    usage = cgroups.usage(Hierarchies({"memory": str(tmp_path)}), "sbx_1")
    assert (usage.memory_bytes, usage.memory_peak_bytes) == (1300, 2400)


@pytest.mark.parametrize(
    ("memory_bytes", "sockets"), [(1 << 25, 16 << 20), (1 << 28, 64 << 20), (1 << 32, 1 << 30)]
)
def test_sockets_get_a_quarter_of_the_memory_and_not_too_little(
    memory_bytes: int, sockets: int
) -> None:
    planned = cgroups.plan(Hierarchies({"memory": "/m"}), "x", Limits(memory_bytes=memory_bytes))
    (limit,) = (w for w in planned.writes if "kmem.tcp" in w.path)
    assert limit.value == str(sockets)


def test_a_limit_without_a_controller_is_named() -> None:
    planned = cgroups.plan(parse_mounts(LEGACY), "sbx_1", LIMITS)
    assert planned.missing == ("pids",)
    assert planned.v2_directory is None
    # cpu and cpuacct share one mount: joined once.
    assert planned.directories == (
        "/sys/fs/cgroup/memory/sandkasten/sbx_1",
        "/sys/fs/cgroup/cpu,cpuacct/sandkasten/sbx_1",
    )


def test_without_cgroups_every_limit_is_reported_as_unenforced() -> None:
    planned = cgroups.plan(parse_mounts("nonsense\n1 2 3\n"), "sbx_1", LIMITS)
    assert planned == CgroupPlan((), missing=("memory", "pids", "cpu"))


@pytest.mark.parametrize(("cpus", "quota"), [(0.001, "1000"), (0.5, "50000"), (16, "1600000")])
def test_the_processor_quota_never_falls_below_the_kernels_minimum(cpus: float, quota: str) -> None:
    planned = cgroups.plan(Hierarchies({"cpu": "/c"}), "x", Limits(cpus=cpus))
    assert planned.writes[-1].value == quota


def test_v2_usage_is_read_from_v2_names(tmp_path: Path) -> None:
    group = tmp_path / "sandkasten" / "sbx_1"
    group.mkdir(parents=True)
    for name, text in {
        "memory.current": "1000\n",
        "memory.peak": "2000\n",
        "memory.max": "max\n",
        "memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n",
        "pids.current": "3\n",
        "pids.max": "64\n",
        "pids.events": "max 7\n",
        "cpu.stat": "usage_usec 12345\nuser_usec 1\n",
    }.items():
        (group / name).write_text(text)
    on = Hierarchies({}, str(tmp_path), frozenset({"memory", "pids", "cpu"}))
    usage = cgroups.usage(on, "sbx_1")
    assert usage == Usage(
        memory_bytes=1000,
        memory_peak_bytes=2000,
        memory_limit_bytes=None,
        cpu_usec=12345,
        pids=3,
        pids_limit=64,
        oom_kills=2,
        pids_refused=7,
    )


def test_a_cgroup_is_created_measured_and_removed_with_its_parent() -> None:
    on = cgroups.detect()
    name = f"test-{os.getpid()}"
    planned = cgroups.plan(on, name, LIMITS, parent="sandkasten-test")
    try:
        cgroups.make(on, planned)
        assert cgroups.usage(on, name, parent="sandkasten-test").pids_limit == 64
        assert not cgroups.populated(planned)
    finally:
        cgroups.remove(planned)
    assert not any(Path(d).parent.exists() for d in planned.directories)
    cgroups.remove(planned)  # twice is fine
