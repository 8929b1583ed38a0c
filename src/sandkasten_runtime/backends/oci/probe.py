"""Requirements of an OCI runtime on this machine, each with its remedy. Blocking."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.model.sandbox.limits import Limits
from sandkasten.model.sandbox.readiness import Requirement
from sandkasten_runtime.backends.oci import runtimes
from sandkasten_runtime.linux import host_requirements
from sandkasten_runtime.linux.cgroup import cgroups

if TYPE_CHECKING:
    from sandkasten.errors import SandkastenError
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten_runtime.backends.oci.runtimes import Name
    from sandkasten_runtime.linux.programs import Programs
    from sandkasten_runtime.linux.state_layout import Layout


def look(
    layout: Layout,
    programs: Programs,
    hierarchies: cgroups.Hierarchies,
    runtime: Name,
    *,
    strict: bool,
) -> Readiness:
    lines = [
        host_requirements.linux_kernel(),
        *_runtime(runtime, hierarchies, strict=strict),
        _root(runtime),
        host_requirements.shipped_programs(programs),
        host_requirements.data_directory(layout.data_dir),
        *host_requirements.workspace_quota(os.geteuid() == 0, layout.data_dir),
    ]
    planned = cgroups.plan(hierarchies, "probe", Limits())
    lines.append(host_requirements.control_groups(planned, os.geteuid() == 0))
    lines.append(host_requirements.socket_memory(hierarchies, os.geteuid() == 0))
    lines.append(host_requirements.pausing(hierarchies, os.geteuid() == 0))
    lost = tuple(host_requirements.missing_controllers(planned.missing, root=True))
    return host_requirements.verdict(lines, lost)


def warnings(looked: Readiness) -> tuple[str, ...]:
    """Return what a user of a sandbox should know about its runtime."""
    return tuple(
        f"runc {line.state}; run sandkasten doctor for the remedy"
        for line in looked.requirements
        if line.name == runtimes.RELEASE and not line.ok
    )


def refused(looked: Readiness, runtime: Name, exc: SandkastenError) -> Readiness:
    """Report that everything is present, but a sandbox created with it fails the self-test."""
    line = Requirement(f"{runtime} tried", False, exc.message, exc.hint)
    return replace(
        looked,
        ready=False,
        reason=exc.message,
        remedy=exc.hint,
        requirements=(*looked.requirements, line),
    )


def _root(runtime: Name) -> Requirement:
    return Requirement(
        "root",
        os.geteuid() == 0,
        "yes" if os.geteuid() == 0 else f"{runtime} requires root in this version",
        "run as root, or use the local backend, which needs none",
    )


def _runtime(name: Name, on: cgroups.Hierarchies, *, strict: bool) -> list[Requirement]:
    program = runtimes.find(name)
    if program is None:
        return [runtimes.missing(name)]
    try:
        version = runtimes.ask_version(program)
    except (OSError, subprocess.SubprocessError) as exc:
        return [Requirement(name, False, f"{program} does not run: {exc}", "reinstall it")]
    lines = [Requirement(name, True, f"{program} {version.text}")]
    if name == "runc":
        lines.append(runtimes.judge_runc(version, strict=strict))
    if name == "crun":
        lines.append(runtimes.judge_crun(hybrid=bool(on.v1) and on.v2 is not None))
    return lines
