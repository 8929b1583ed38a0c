"""Requirements of the local backend on this machine, each with its remedy. Blocking."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.errors import SandkastenError
from sandkasten.model.sandbox.limits import Limits
from sandkasten.model.sandbox.readiness import Readiness, Requirement
from sandkasten_runtime.linux import host_requirements, launcher
from sandkasten_runtime.linux.cgroup import cgroups
from sandkasten_runtime.linux.confinement import id_ranges
from sandkasten_runtime.linux.programs import find_bwrap
from sandkasten_runtime.linux.storage import host_root

if TYPE_CHECKING:
    from sandkasten_runtime.linux.programs import Programs
    from sandkasten_runtime.linux.state_layout import Layout

_BWRAP_MIN = (0, 8)  # --disable-userns and repeated --add-seccomp-fd


def look(
    layout: Layout, programs: Programs, hierarchies: cgroups.Hierarchies, root: bool
) -> Readiness:
    lines = [
        host_requirements.linux_kernel(),
        _bubblewrap(),
        host_requirements.shipped_programs(programs),
        host_requirements.system_call_filter(),
        _user_namespaces(),
        host_requirements.data_directory(layout.data_dir),
        *host_requirements.workspace_quota(root, layout.data_dir),
        *_overlays(layout, programs, root=root),
    ]
    planned = cgroups.plan(hierarchies, "probe", Limits())
    unenforced = tuple(host_requirements.missing_controllers(planned.missing, root=root))
    lines.append(host_requirements.control_groups(planned, root))
    lines.append(host_requirements.socket_memory(hierarchies, root))
    pausing = host_requirements.pausing(hierarchies, root)
    lines.append(pausing)
    lines.append(host_requirements.network(programs))
    needs_root = () if root else ("dev_profile", "resize", "snapshots")
    lacks = (*needs_root, *(() if pausing.ok else ("pause", "snapshots")))
    return replace(host_requirements.verdict(lines, unenforced), lacks=lacks)


def _shown() -> list[str]:
    """Enough of the host to run a program; mounts elsewhere may come and go."""
    root = host_root.look()
    args = ["--ro-bind", "/usr", "/usr"]
    for name, target in root.links:
        args += ["--symlink", target, f"/{name}"]
    for name in root.directories:
        args += ["--ro-bind", f"/{name}", f"/{name}"]
    return args


def _overlays(layout: Layout, programs: Programs, *, root: bool) -> list[Requirement]:
    """Try them: the launcher overlays two empty layers, and the machine's own directories."""
    remedy = (
        "a kernel with overlayfs (5.11 for an ordinary user; 5.19 and idmapped mounts as root), "
        "and the data directory on ext4, xfs, btrfs or tmpfs; the host image works without"
    )
    if programs.missing():
        return [Requirement("images", False, "not tried: no launcher", remedy, required=False)]
    host = host_root.look()
    at = layout.data_dir if os.access(layout.data_dir, os.W_OK) else None
    try:
        with tempfile.TemporaryDirectory(prefix="trial-", dir=at) as place:
            for name in ("lower", "upper", "stage"):
                os.mkdir(os.path.join(place, name))
            plan = trial_plan(place, root=root)
            plan["own_devices"] = root
            plan["private"] = [{"source": f"/{name}", "name": name} for name in host.private]
            shared = launcher.launch(programs.launcher, plan).shared
    except (OSError, SandkastenError) as exc:
        return [Requirement("images", False, str(exc)[:300], remedy, required=False)]
    how = "overlay over idmapped layers" if root else "overlay in a user namespace"
    images = Requirement("images", True, how, required=False)
    return [images, _private((*host.shared, *shared), host, root=root)]


def _private(shared: tuple[str, ...], host: host_root.HostRoot, *, root: bool) -> Requirement:
    """Report whether a sandbox on the host image has its own inodes."""
    name = "private host image"
    own_devices = root and "dev" not in shared
    shared = tuple(path for path in shared if path != "dev")
    if not shared:
        devices = "" if own_devices else "; the nodes in /dev are the host's"
        return Requirement(name, True, f"an overlay for each sandbox{devices}", required=False)
    why = "mounts below it" if set(shared) <= set(host.shared) else "the kernel refuses"
    return Requirement(
        name, False,
        f"{', '.join(f'/{path}' for path in shared)} cannot be overlaid ({why}): sandboxes can "
        "notice which of its files the host and others use (inotify, flock)",
        "use an image, or unmount what is mounted below it", required=False,
    )  # fmt: skip


def trial_plan(place: str, *, root: bool) -> dict[str, object]:
    base = id_ranges.base_of(id_ranges.SLOTS)
    return {
        "trial": True,
        "listen_fd": 0,
        "cgroup_tasks": [],
        "cgroup_v2": None,
        # Beyond the last range that is ever leased, so it is unused.
        "id_map": {"base": base, "count": id_ranges.COUNT, "expect": base} if root else None,
        "stage": f"{place}/stage",
        "root": {
            "layers": [f"{place}/lower", f"{place}/upper"],
            "writable": False,
            "places": [{"path": "/proc", "mode": 0o555, "directory": True}],
        },
        "workspace": {"kind": "tmpfs", "bytes": 65536},
        "workspace_owner": 0,
        "binds": [],
        "limits": [],
        "timeout_ms": 5000,
    }


def _bubblewrap() -> Requirement:
    path = find_bwrap()
    if path is None:
        return Requirement("bubblewrap", False, "not installed", "apt-get install bubblewrap")
    try:
        words = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True, env={}
        ).stdout.split()
        version = tuple(int(p) for p in words[-1].split(".")[:2])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as exc:
        return Requirement("bubblewrap", False, f"{path} does not run: {exc}", "reinstall it")
    ok = version >= _BWRAP_MIN
    return Requirement("bubblewrap", ok, f"{path} {words[-1]}", "install bubblewrap 0.8 or newer")


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
            [path, "--unshare-user", *_shown(), "--", "/usr/bin/true"],
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
