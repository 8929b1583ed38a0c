"""The lines that `doctor` prints about an engine, each with its state and, if bad, a remedy.
Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sandkasten.model.sandbox.limits import Unenforced
from sandkasten.model.sandbox.readiness import Requirement
from sandkasten_docker.docker_engine.workspace_mode import user_namespaces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.errors import UnsupportedByBackend
    from sandkasten_docker.docker_engine.docker_address import DockerAddress
    from sandkasten_docker.docker_options import DockerMode
    from sandkasten_docker.session_volumes import SessionVolumes

# The oldest version with all we need: masked paths, private cgroup namespaces, one-shot stats.
API_NEEDED = (1, 41)
_DRIVERS = ("overlay2", "fuse-overlayfs", "btrfs", "zfs", "overlayfs", "stargz", "windowsfilter")
_LIMITS = {
    "memory": ("MemoryLimit", "one sandbox can use all memory of the Docker Engine's machine"),
    "pids": ("PidsLimit", "one sandbox can use all process ids of the Docker Engine's machine"),
    "cpu": ("CpuCfsQuota", "one sandbox can use every processor"),
}


def reachable(address: DockerAddress, version: Mapping[str, Any]) -> Requirement:
    return Requirement("engine", True, f"Docker {version.get('Version', '?')} at {address.shown}")


def api_version(version: Mapping[str, Any]) -> Requirement:
    text = str(version.get("ApiVersion", ""))
    number = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    return Requirement(
        "API version", number >= API_NEEDED, text or "unknown",
        "use Docker 20.10 or newer",
    )  # fmt: skip


def docker_mode(address: DockerAddress, wanted: DockerMode) -> Requirement:
    """Compare what the operator expects with what is there."""
    fits = {
        "auto": True,
        "docker_socket": address.kind == "unix",
        "sidecar": True,
        "remote": address.kind in ("tcp", "ssh"),
    }[wanted]
    is_there = "docker_socket" if address.kind == "unix" else "remote"
    shown = wanted if wanted != "auto" else is_there
    return Requirement(
        "engine mode", fits,
        shown if fits else f"{wanted}, but the Docker Engine is at {address.shown}",
        f"make {address.section}.engine_mode and {address.section}.host agree",
    )  # fmt: skip


def operating_system(info: Mapping[str, Any], machine: str) -> Requirement:
    kind, arch = str(info.get("OSType", "")), str(info.get("Architecture", ""))
    ok = kind == "linux" and arch == machine
    return Requirement(
        "engine's machine", ok, f"{kind} {arch}",
        f"the runner is made for linux {machine}: use a Docker Engine of that kind, or install "
        "sandkasten there",
    )  # fmt: skip


def storage_driver(info: Mapping[str, Any]) -> Requirement:
    driver = str(info.get("Driver", ""))
    return Requirement(
        "storage driver", driver in _DRIVERS, driver,
        "vfs and devicemapper copy whole images: use overlay2", required=False,
    )  # fmt: skip


def cgroup_version(info: Mapping[str, Any]) -> Requirement:
    version, driver = str(info.get("CgroupVersion", "")), str(info.get("CgroupDriver", ""))
    return Requirement(
        "cgroups", driver != "none", f"v{version or '?'}, {driver or 'none'}",
        "the Docker Engine has no cgroups and enforces no limits: delegate cgroups to it",
        required=False,
    )  # fmt: skip


def separate_sockets(info: Mapping[str, Any]) -> bool:
    """Return whether socket buffers are not part of the memory limit there: on cgroup v1."""
    return str(info.get("CgroupVersion", "")) == "1"


def unlimited_sockets() -> Unenforced:
    return Unenforced(
        "memory",
        "the Docker Engine's machine has cgroup v1, where the buffers of TCP and UDP sockets do "
        "not count",
        "use cgroup v2 there, crun as its runtime, or run the daemon as root on that machine",
    )


def socket_memory(info: Mapping[str, Any], *, local: bool) -> Requirement:
    ok = local or not separate_sockets(info)
    state = "cgroup v1: limited from this machine" if ok else "cgroup v1: runc does not limit it"
    return Requirement(
        "socket memory", ok, state if separate_sockets(info) else "part of the memory limit",
        unlimited_sockets().remedy, required=False,
    )  # fmt: skip


def network(refusal: UnsupportedByBackend | None, *, entered: bool) -> Requirement:
    if refusal is None:
        where = "on this machine" if entered else "in a container of the Docker Engine"
        return Requirement("network", True, f"by rule, through an egress process {where}")
    return Requirement("network", False, refusal.message, refusal.hint, required=False)


def user_ids(info: Mapping[str, Any]) -> Requirement:
    mapped = user_namespaces(info)
    return Requirement(
        "user namespaces", mapped,
        "ids are mapped" if mapped
        else "a sandbox's uid 1000 is uid 1000 of the Docker Engine's machine",
        "start dockerd with --userns-remap=default, or rootless", required=False,
    )  # fmt: skip


def seccomp(info: Mapping[str, Any]) -> Requirement:
    ok = any(option.startswith("name=seccomp") for option in info.get("SecurityOptions") or ())
    return Requirement(
        "seccomp", ok, "our own profile" if ok else "the Docker Engine has no system-call filter",
        "use a Docker Engine with seccomp",
    )  # fmt: skip


def workspace(place: SessionVolumes) -> Requirement:
    dial = "its socket" if place.direct else "a stream of the Docker Engine"
    return Requirement("workspaces", True, f"{place.mode}: {place.why}; spoken to through {dial}")


def unenforced(info: Mapping[str, Any], *, sized: bool) -> tuple[Unenforced, ...]:
    gaps = [
        Unenforced(
            limit,
            f"the Docker Engine's machine holds no {limit} limit; {consequence}",
            f"enable the {limit} cgroup controller there",
        )
        for limit, (key, consequence) in _LIMITS.items()
        if info.get(key) is False
    ]
    if not sized:
        gaps.append(
            Unenforced(
                "workspace",
                "volumes of a Docker Engine have no size; one sandbox can fill its disk",
                "workspace_mode bind on the Docker Engine's own machine, as root, holds it; "
                "require_workspace_limit refuses a Docker Engine that does not",
            )
        )
    return tuple(gaps)
