"""What this machine has and lacks for the local backend, each with its remedy. Blocking."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from sandkasten.linux import cgroups, requirements
from sandkasten.linux.programs import find_bwrap
from sandkasten.model.limits import Limits
from sandkasten.model.readiness import Readiness, Requirement

if TYPE_CHECKING:
    from sandkasten.linux.layout import Layout
    from sandkasten.linux.programs import Programs

_BWRAP_MIN = (0, 8)  # --disable-userns and repeated --add-seccomp-fd


def look(
    layout: Layout, programs: Programs, hierarchies: cgroups.Hierarchies, root: bool
) -> Readiness:
    lines = [
        requirements.linux_kernel(),
        _bubblewrap(),
        requirements.shipped_programs(programs),
        requirements.system_call_filter(),
        _user_namespaces(),
        requirements.data_directory(layout.data_dir),
        *requirements.workspace_quota(root),
    ]
    planned = cgroups.plan(hierarchies, "probe", Limits())
    unenforced = tuple(requirements.missing_controllers(planned.missing, root=root))
    lines.append(requirements.control_groups(planned, root))
    lines.append(requirements.pausing(hierarchies, root))
    return requirements.verdict(lines, unenforced)


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
