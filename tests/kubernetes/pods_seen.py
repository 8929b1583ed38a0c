"""What a cluster on this machine has of one sandbox, as its API server and the kernel show it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten_kubernetes import pod_names
from sandkasten_runtime.linux.cgroup import cgroups
from tests.cluster.kube_api import ApiError, KubeApi
from tests.cluster.lent_cluster import KUBECONFIG
from tests.engines import seen

if TYPE_CHECKING:
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.usage import Usage

# Volumes of ours with a size, and what every container runtime mounts for a container.
_OPEN = (
    "/workspace", "/home/sandbox", "/tmp", "/var/tmp", "/run/sandkasten/state",
    "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/proc",
)  # fmt: skip
# Mounted for writing, and root's: no process of a sandbox is root.
_ROOTS = ("/etc/hosts", "/sys/fs/cgroup")
# A file of the node's disk, which the kubelet mounts into every container.
TERMINATION_LOG = "/dev/termination-log"
_SHOWN = ("sysfs", "cgroup", "cgroup2")
_FORBIDDEN = ("debugfs", "tracefs", "securityfs", "bpf", "fusectl")
_NOT_FOUND = 404


def _api() -> KubeApi:
    return KubeApi.of(Path(os.environ[KUBECONFIG]))


def first_process(sandbox_id: SandboxId) -> int:
    """Return the pid of its runner on the host; the nodes of tests share the host's kernel."""
    pod = _api().pod(pod_names.pod_name(sandbox_id))
    told = next(
        one["containerID"]
        for one in pod["status"]["containerStatuses"]
        if one["name"] == pod_names.SANDBOX_CONTAINER
    )
    container = told.rpartition("/")[2]
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            group = Path(f"/proc/{name}/cgroup").read_text()
            status = Path(f"/proc/{name}/status").read_text(errors="replace")
        except OSError:
            continue
        if f"/{container}\n" in group and "\t1\n" in status.partition("\nNSpid:")[2][:100]:
            return int(name)
    raise AssertionError(f"no process of this machine is the first one of {sandbox_id}")


def usage(groups: list[str]) -> Usage:
    """Return what the kernel counts for its container."""
    on = cgroups.detect()
    tops = (*on.v1.values(), *([on.v2] if on.v2 else []))
    inner = next(one.removeprefix(f"{top}/") for one in groups for top in tops if top in one)
    above, pod, container = inner.rsplit("/", 2)
    whole = cgroups.usage(on, pod, parent=above)
    found = cgroups.usage(on, container, parent=f"{above}/{pod}")
    # The limit of processes is the Pod's; a kernel counts a refusal at the one or the other.
    refused = (whole.pids_refused or 0) + (found.pids_refused or 0)
    return replace(found, pids_refused=refused)


def mount_deviations(mountinfo: str) -> list[str]:
    """Return what differs from the rules. `nosuid` is not checked: a Pod cannot ask for it."""
    found = []
    for line in seen.reachable(mountinfo):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()[0]
        at, options = fields[4], fields[5].split(",")
        mask = at.startswith("/proc/") and fields[3] == "/null"
        if kind in _FORBIDDEN:
            found.append(f"{kind} is mounted on {at}")
        if "rw" in options and at not in (*_OPEN, *_ROOTS, TERMINATION_LOG) and not mask:
            found.append(f"{at} is writable")
        if kind in _SHOWN and "ro" not in options:
            found.append(f"{kind} on {at} is writable")
        if any(one.startswith("shared:") for one in fields[6:]):
            found.append(f"{at} is shared with others")
    return found


def things(sandbox_id: SandboxId) -> list[str]:
    """Return the Pod and the Secret of its name."""
    found = []
    for kind in ("pods", "secrets"):
        path = f"/api/v1/namespaces/default/{kind}/{pod_names.pod_name(sandbox_id)}"
        try:
            _api().ask("GET", path)
        except ApiError as exc:
            if exc.status != _NOT_FOUND:
                raise
        else:
            found.append(f"{kind} {pod_names.pod_name(sandbox_id)}")
    return found
