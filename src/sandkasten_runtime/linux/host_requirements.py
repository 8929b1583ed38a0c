"""Requirements of the local backends, found or missing, each with its remedy. Blocking.

Lines for `doctor` and the limits that this host cannot enforce; each backend decides which of them
it needs.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.disk import free_space
from sandkasten.errors import SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.limits import Unenforced
from sandkasten.model.sandbox.readiness import Readiness, Requirement
from sandkasten_runtime.linux.cgroup import cgroups, freezer
from sandkasten_runtime.linux.confinement import seccomp_bpf
from sandkasten_runtime.linux.launcher import launch
from sandkasten_runtime.linux.storage import tree_copy, workspace_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sandkasten_runtime.linux.programs import Programs

_CONSEQUENCE = {
    "memory": "one sandbox can use all memory of the machine",
    "pids": "one sandbox can use all process ids of the machine",
    "cpu": "one sandbox can use every processor",
}


@dataclass(frozen=True, slots=True)
class Group:
    """The cgroups of one sandbox and the limits they cannot enforce."""

    plan: cgroups.CgroupPlan
    unenforced: tuple[Unenforced, ...]


def make_group(on: cgroups.Hierarchies, planned: cgroups.CgroupPlan, *, root: bool) -> Group:
    """Create the cgroups as far as this host allows."""
    lost = tuple(missing_controllers(planned.missing, root=root))
    if not planned.directories:
        return Group(planned, lost)
    try:
        cgroups.make(on, planned)
    except OSError as exc:
        with contextlib.suppress(OSError):
            cgroups.remove(planned)
        nothing = cgroups.CgroupPlan((), missing=("memory", "pids", "cpu"))
        return Group(nothing, tuple(no_cgroups(str(exc))))
    return Group(planned, lost)


def verdict(lines: Sequence[Requirement], unenforced: Sequence[Unenforced]) -> Readiness:
    """Return ready, unless a requirement is missing: then the first missing one is the reason."""
    first = next((line for line in lines if line.required and not line.ok), None)
    if first is None:
        return Readiness(True, requirements=tuple(lines), unenforced=tuple(unenforced))
    reason = f"{first.name}: {first.state}"
    return Readiness(False, reason, first.remedy, tuple(lines), tuple(unenforced))


def loop_usable(*, root: bool) -> bool:
    return root and os.access("/dev/loop-control", os.R_OK | os.W_OK)


def missing_controllers(missing: Sequence[str], *, root: bool) -> Iterator[Unenforced]:
    for name in missing:
        if root:
            reason = f"this host has no usable {name} cgroup controller"
            yield Unenforced(name, reason, f"enable the {name} controller in the kernel")
        elif name == "memory":
            yield Unenforced(
                "memory",
                "an ordinary user has no cgroup here; memory is limited per process, not in total",
                "run as root for a limit on the whole sandbox",
            )
        elif name == "cpu":
            reason = "an ordinary user has no cgroup here; processor time is not limited"
            yield Unenforced("cpu", reason, "run as root for a processor limit")


def no_cgroups(reason: str) -> Iterator[Unenforced]:
    for name, consequence in _CONSEQUENCE.items():
        yield Unenforced(
            name,
            f"cgroups cannot be written ({reason}); {consequence}",
            "mount the cgroup file systems writable, or run on the host",
        )


def linux_kernel() -> Requirement:
    ok = sys.platform == "linux"
    return Requirement("Linux", ok, f"{platform.system()} {platform.release()}", "run it on Linux")


def shipped_programs(programs: Programs) -> Requirement:
    missing = programs.missing()
    state = f"missing: {', '.join(missing)}" if missing else "runner and launcher present"
    return Requirement(
        "programs", not missing, state, "run make setup, or install the wheel for this machine"
    )


def system_call_filter() -> Requirement:
    try:
        seccomp_bpf.machine()
        seccomp_bpf.available()
    except SandkastenError as exc:
        return Requirement("seccomp", False, exc.message, exc.hint)
    return Requirement("seccomp", True, f"libseccomp, {platform.machine()}")


def data_directory(path: Path) -> Requirement:
    at = path
    while not at.exists() and at != at.parent:
        at = at.parent
    ok = os.access(at, os.W_OK | os.X_OK)
    return Requirement(
        "data directory", ok, f"{path}", "set SANDKASTEN_DATA_DIR to a place you own"
    )


def workspace_quota(root: bool, data_dir: Path) -> list[Requirement]:
    if not root:
        return [
            Requirement(
                "workspace quota", True, "held by the kernel; the workspace is kept in memory",
                "run as root for workspaces on disk", required=False,
            )
        ]  # fmt: skip
    mkfs = workspace_image.mkfs_program()
    usable = loop_usable(root=root)
    return [
        Requirement(
            "mkfs.ext4", mkfs is not None or not usable, mkfs or "not installed",
            "apt-get install e2fsprogs",
        ),
        Requirement(
            "loop devices", usable,
            "usable" if usable else "not usable: workspaces are kept in memory, with their quota",
            "modprobe loop; in a container pass /dev/loop-control and /dev/loop*", required=False,
        ),
        _reserved_space(data_dir),
        _shared_blocks(data_dir),
    ]  # fmt: skip


def _reserved_space(data_dir: Path) -> Requirement:
    remedy = "put the data directory on ext4 or XFS, or set disk.reserve: none"
    try:
        ok = free_space.is_reservable(data_dir if data_dir.is_dir() else data_dir.parent)
    except OSError as exc:
        state = f"not tried: {exc.strerror or exc}"
        return Requirement("reserved space", False, state, remedy, required=False)
    state = "workspaces get all of their space" if ok else "not possible on this file system"
    return Requirement("reserved space", ok, state, remedy, required=False)


def _shared_blocks(data_dir: Path) -> Requirement:
    remedy = "put the data directory on XFS or btrfs: a snapshot then stops its sandbox for less"
    try:
        ok = tree_copy.can_share(data_dir if data_dir.is_dir() else data_dir.parent)
    except OSError as exc:
        state = f"not tried: {exc.strerror or exc}"
        return Requirement("snapshots", False, state, remedy, required=False)
    state = "share blocks (reflink)" if ok else "copy what is allocated (extents)"
    return Requirement("snapshots", ok, state, remedy, required=False)


def control_groups(planned: cgroups.CgroupPlan, root: bool) -> Requirement:
    if not root:
        return Requirement(
            "cgroups", False, "not available to an ordinary user here",
            "run as root for memory and processor limits", required=False,
        )  # fmt: skip
    parents = [os.path.dirname(os.path.dirname(d)) for d in planned.directories]
    closed = [p for p in parents if not os.access(p, os.W_OK)]
    if closed or planned.missing:
        state = "; ".join(
            [*(f"{p} is not writable" for p in closed), *(f"no {m}" for m in planned.missing)]
        )
        return Requirement("cgroups", False, state, "mount cgroups writable", required=False)
    return Requirement("cgroups", True, "memory, pids and cpu, written directly")


def socket_memory(
    hierarchies: cgroups.Hierarchies, root: bool, kernel_options: str | None = None
) -> Requirement:
    """Report whether the buffers of TCP and UDP sockets are limited."""
    name = "socket memory"
    if not root:
        return Requirement(
            name, False, "not limited: no cgroups for an ordinary user here",
            "run as root; until then a sandbox can fill the buffers of the whole machine",
            required=False,
        )  # fmt: skip
    at = hierarchies.v1.get("memory")
    if at is not None:
        limited = os.path.exists(f"{at}/{cgroups.SOCKET_LIMIT}")
        return Requirement(
            name, limited,
            "cgroup v1: a quarter of the memory limit, in addition to it" if limited
            else f"not limited: this kernel has no {cgroups.SOCKET_LIMIT}",
            "use a host with cgroup v2", required=False,
        )  # fmt: skip
    if kernel_options is None:
        kernel_options = Path("/proc/cmdline").read_text()
    counted = "memory" in hierarchies.v2_controllers and not any(
        option.startswith("cgroup.memory=") and "nosocket" in option.split("=")[1].split(",")
        for option in kernel_options.split()
    )
    return Requirement(
        name, counted, "cgroup v2: part of the memory limit" if counted else "not limited",
        "remove nosocket from cgroup.memory= on the kernel's command line", required=False,
    )  # fmt: skip


def network(programs: Programs, *, device: bool = False) -> Requirement:
    """Report whether a sandbox can have a network, by making what it needs and nothing else.

    `device`: the sandbox has its own network stack, which takes over a device.
    """
    if not os.access(programs.egress, os.X_OK):
        return Requirement(
            "network", False, f"not possible: {programs.egress.name} is missing or cannot be run",
            "run make setup, or install the wheel for this machine", required=False,
        )  # fmt: skip
    try:
        launch(programs.launcher, {"try_network": {"device": device}})
    except SandkastenError as exc:
        reason = exc.message.partition(": ")[2] or exc.message
        return Requirement("network", False, f"not possible: {reason}", exc.hint, required=False)
    return Requirement("network", True, "by rule, through an egress process")


def pausing(hierarchies: cgroups.Hierarchies, root: bool) -> Requirement:
    if not root:
        return Requirement(
            "pausing", False, "not available to an ordinary user here", "run as root",
            required=False,
        )  # fmt: skip
    ways = freezer.freezers(hierarchies, "probe")
    state = " or ".join(way.file for way in ways) or "no freezer"
    return Requirement(
        "pausing", bool(ways), state, "mount the cgroup2 file system, or the v1 freezer",
        required=False,
    )  # fmt: skip
