"""What this machine has and lacks for the local backend, each with its remedy. Blocking."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import TYPE_CHECKING

from sandkasten.errors import SandkastenError
from sandkasten.linux import cgroups, freezing, quota, seccomp
from sandkasten.model.limits import Limits, Unenforced
from sandkasten.model.readiness import Readiness, Requirement

from .programs import Programs, find_bwrap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .layout import Layout

_BWRAP_MIN = (0, 8)  # --disable-userns and repeated --add-seccomp-fd
_CONSEQUENCE = {
    "memory": "one sandbox can use all memory of the machine",
    "pids": "one sandbox can use all process ids of the machine",
    "cpu": "one sandbox can use every processor",
}


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


def look(
    layout: Layout, programs: Programs, hierarchies: cgroups.Hierarchies, root: bool
) -> Readiness:
    lines = [
        _linux(),
        _bubblewrap(),
        _programs(programs),
        _seccomp(),
        _user_namespaces(),
        _data_dir(layout.data_dir),
        *_quota(root),
    ]
    planned = cgroups.plan(hierarchies, "probe", Limits())
    unenforced = tuple(missing_controllers(planned.missing, root=root))
    lines.append(_cgroups(planned, root))
    lines.append(_pausing(hierarchies, root))
    failed = [line for line in lines if line.required and not line.ok]
    if failed:
        first = failed[0]
        return Readiness(
            False, f"{first.name}: {first.state}", first.remedy, tuple(lines), unenforced
        )
    return Readiness(True, requirements=tuple(lines), unenforced=unenforced)


def _linux() -> Requirement:
    ok = sys.platform == "linux"
    return Requirement("Linux", ok, f"{platform.system()} {platform.release()}", "run it on Linux")


def _bubblewrap() -> Requirement:
    path = find_bwrap()
    if path is None:
        return Requirement("bubblewrap", False, "not installed", "apt-get install bubblewrap")
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True, env={}
        ).stdout.split()
        version = tuple(int(p) for p in said[-1].split(".")[:2])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as exc:
        return Requirement("bubblewrap", False, f"{path} does not run: {exc}", "reinstall it")
    ok = version >= _BWRAP_MIN
    return Requirement("bubblewrap", ok, f"{path} {said[-1]}", "install bubblewrap 0.8 or newer")


def _programs(programs: Programs) -> Requirement:
    missing = programs.missing()
    state = f"missing: {', '.join(missing)}" if missing else "runner and launcher present"
    return Requirement(
        "programs", not missing, state, "run make setup, or install the wheel for this machine"
    )


def _seccomp() -> Requirement:
    try:
        seccomp.machine()
        seccomp.available()
    except SandkastenError as exc:
        return Requirement("seccomp", False, exc.message, exc.hint)
    return Requirement("seccomp", True, f"libseccomp, {platform.machine()}")


def _user_namespaces() -> Requirement:
    remedy = (
        "sysctl user.max_user_namespaces above 0; kernel.unprivileged_userns_clone=1; on AppArmor "
        "hosts kernel.apparmor_restrict_unprivileged_userns=0"
    )
    path = find_bwrap()
    if path is None:
        return Requirement("user namespaces", False, "not tried: no bubblewrap", remedy)
    try:
        tried = subprocess.run(
            [path, "--unshare-user", "--ro-bind", "/", "/", "--", "/bin/true"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
            env={},
        )
    except (OSError, subprocess.SubprocessError) as exc:
        return Requirement("user namespaces", False, str(exc), remedy)
    ok = tried.returncode == 0
    return Requirement("user namespaces", ok, "allowed" if ok else tried.stderr.strip(), remedy)


def _data_dir(path: Path) -> Requirement:
    at = path
    while not at.exists() and at != at.parent:
        at = at.parent
    ok = os.access(at, os.W_OK | os.X_OK)
    return Requirement(
        "data directory", ok, f"{path}", "set SANDKASTEN_DATA_DIR to a place you own"
    )


def _quota(root: bool) -> list[Requirement]:
    if not root:
        return [
            Requirement(
                "workspace quota", True, "held by the kernel; the workspace is kept in memory",
                "run as root for workspaces on disk", required=False,
            )
        ]  # fmt: skip
    mkfs = quota.mkfs_program()
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
    ]  # fmt: skip


def _cgroups(planned: cgroups.Plan, root: bool) -> Requirement:
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


def _pausing(hierarchies: cgroups.Hierarchies, root: bool) -> Requirement:
    if not root:
        return Requirement(
            "pausing", False, "not available to an ordinary user here", "run as root",
            required=False,
        )  # fmt: skip
    ways = freezing.freezers(hierarchies, "probe")
    state = " or ".join(way.file for way in ways) or "no freezer"
    return Requirement(
        "pausing", bool(ways), state, "mount the cgroup2 file system, or the v1 freezer",
        required=False,
    )  # fmt: skip
