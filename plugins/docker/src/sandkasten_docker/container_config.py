"""The container configuration of one sandbox: a pure function of the spec and the platform.

The image needs nothing special: the runner comes from a volume, the user needs no entry in passwd,
and every writable directory is mounted.
"""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any

from sandkasten.errors import InvalidImage
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import (
    HOME,
    RUNNER_ID,
    TMP,
    VAR_TMP,
    WORKSPACE,
    CellSpec,
    base_environment,
    home,
    root_is_writable,
    user_id,
    writes_to_host,
)
from sandkasten_docker import resource_names
from sandkasten_runtime.linux.cgroup.cgroups import socket_bytes
from sandkasten_runtime.linux.confinement import capabilities
from sandkasten_runtime.linux.storage.host_root import RESOLVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.gpus import GpuRequest

# A command is at most 1 MiB and is stored here while it is read; several shells may do so at once.
_STATE_BYTES = 8 << 20
_RUN_BYTES = 16 << 20
_LISTEN_BYTES = 64 << 10
_NANO = 1_000_000_000
# Docker's own list, plus other entries of a shared kernel's /proc that describe the host; all of
# /sys.
MASKED = (
    "/sys",
    *(f"/proc/{name}" for name in (
        "acpi", "asound", "cmdline", "config.gz", "fs", "interrupts", "kallsyms", "kcore", "keys",
        "latency_stats", "pressure", "sched_debug", "scsi", "sysrq-trigger", "timer_list",
        "timer_stats",
    )),
)  # fmt: skip
READ_ONLY = ("/proc/bus", "/proc/irq", "/proc/sys")
# Our own paths; an image's content at these paths is hidden.
_PLACES = (
    WORKSPACE,
    HOME,
    TMP,
    "/run",
    resource_names.BIN_DIR,
    resource_names.STATE_DIR,
    resource_names.LISTEN_DIR,
)
_KERNELS = ("/proc/", "/sys/", "/dev/", f"{resource_names.RUNNER_DIR}/")
# Needed to give the user the directories that an engine made for root, before the runner drops its
# privileges.
_TO_GIVE = ("CAP_CHOWN",)

# The engine writes these to resolv.conf; "." keeps its own search domains out.
_NAMES = {
    "Dns": [RESOLVER],
    "DnsSearch": ["."],
    "DnsOptions": ["timeout:5", "attempts:2"],
}


@dataclass(frozen=True, slots=True)
class ContainerMount:
    kind: str
    """`bind` or `volume`."""
    source: str
    target: str
    read_only: bool = False
    docker_owned: bool = False
    """True if the source is among the engine's own files, for which it allows no private bind."""
    created: bool = False
    """Whether the engine creates a missing source; `to_text` instead of `to_json`."""

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "Type": self.kind,
            "Source": self.source,
            "Target": self.target,
            "ReadOnly": self.read_only,
        }
        if self.kind == "bind":
            # Mounts made inside a sandbox do not propagate.
            propagation = "rslave" if self.docker_owned else "rprivate"
            document["BindOptions"] = {"Propagation": propagation, "NonRecursive": True}
        else:
            # Image content at that path must not be copied into the workspace.
            document["VolumeOptions"] = {"NoCopy": True}
        return document

    def to_text(self) -> str:
        """Return a bind in the older form: every engine creates its source if it is missing."""
        return f"{self.source}:{self.target}:{'rslave' if self.docker_owned else 'rprivate'}"


@dataclass(frozen=True, slots=True)
class ContainerPlatform:
    """What the engine and the host have prepared."""

    owner: str
    image: str
    mounts: tuple[ContainerMount, ...]
    seccomp: Mapping[str, object]
    given: bool = False
    """Whether its directories already belong to the sandbox's user."""
    image_volumes: tuple[str, ...] = ()
    """As returned by `image_volumes`."""
    writable_root: bool = False
    """True if there are no volumes, so the container's own layer holds the workspace."""
    separate_sockets: bool = False
    """True if socket buffers need their own limit: on cgroup v1."""
    version: str = ""


def image_volumes(image: str, declared: Iterable[str]) -> tuple[str, ...]:
    """Return the volumes an image declares besides our own paths. Raise InvalidImage if they
    collide.

    An engine creates a volume for each of them, without a size limit, and this cannot be switched
    off.
    """
    volumes = []
    for path in sorted({posixpath.normpath(entry) for entry in declared}):
        if path in _PLACES:
            continue
        above = any(place.startswith(f"{path.rstrip('/')}/") for place in _PLACES)
        if above or not path.startswith("/") or path.startswith(_KERNELS):
            raise InvalidImage(
                f"image {image} declares a volume at {path[:200]}, which a sandbox mounts itself",
                hint="build it without that VOLUME, or use another image",
                image=image,
            )
        volumes.append(path)
    return tuple(volumes)


def container(sandbox_id: SandboxId, spec: CellSpec, platform: ContainerPlatform) -> dict[str, Any]:
    return {
        "Image": platform.image,
        "Hostname": spec.hostname,
        "Entrypoint": runner_command(spec, platform),
        "Cmd": [],
        # The engine sets HOSTNAME itself; a name without a value removes it again.
        "Env": [*(f"{name}={value}" for name, value in base_environment(spec).items()), "HOSTNAME"],
        # The runner drops its privileges itself: an engine gives capabilities to root only.
        "User": "0:0",
        "WorkingDir": "/",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": labels(resource_names.CELL, platform.owner, sandbox_id, version=platform.version),
        # Without a network, the engine writes no resolv.conf.
        "NetworkDisabled": spec.network.closed,
        "AttachStdin": False, "AttachStdout": False, "AttachStderr": False,
        "OpenStdin": False, "Tty": False,
        "StopSignal": "SIGKILL",
        "HostConfig": _host_config(sandbox_id, spec, platform),
    }  # fmt: skip


def labels(kind: str, owner: str, sandbox_id: str = "", *, version: str = "") -> dict[str, str]:
    pairs = {resource_names.LABEL: kind, resource_names.LABEL_OWNER: owner}
    if sandbox_id:
        pairs[resource_names.LABEL_ID] = sandbox_id
        pairs[resource_names.LABEL_SESSION] = sandbox_id
    if version:
        pairs[resource_names.LABEL_VERSION] = version
    return pairs


def runner_command(spec: CellSpec, platform: ContainerPlatform) -> list[str]:
    command = [
        resource_names.RUNNER_PATH,
        "--listen", resource_names.SOCKET_PATH,
        "--run-as", f"{RUNNER_ID}:{RUNNER_ID}",
        # The engine starts a program from there, in a sandbox that runs untrusted code.
        "--guard", resource_names.RUNNER_PATH,
        "--guard", resource_names.LISTEN_DIR,
        "--guard", resource_names.STATE_DIR,
        "--state-dir", resource_names.STATE_DIR,
        "--workspace", WORKSPACE,
        "--home", home(spec),
        "--user", f"{user_id(spec)}:{user_id(spec)}",
    ]  # fmt: skip
    if not platform.given:
        command += ["--own", WORKSPACE, "--own", home(spec)]
    if spec.profile == "dev":
        command += ["--user-capabilities", f"{capabilities.bits(capabilities.DEV_USER):x}"]
    return [*command, *(["--no-set-id"] if writes_to_host(spec) else ())]


def _host_config(
    sandbox_id: SandboxId, spec: CellSpec, platform: ContainerPlatform
) -> dict[str, Any]:
    limits = spec.limits
    for_user = capabilities.DEV_USER if spec.profile == "dev" else ()
    to_give = () if platform.given else _TO_GIVE
    added = sorted({*capabilities.RUNNER, *to_give, *for_user})
    created = [mount.to_text() for mount in platform.mounts if mount.created]
    core = {"Name": "core", "Soft": 0, "Hard": 0}
    files = {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files}
    devices = {} if spec.gpus is None else {"DeviceRequests": [_device_request(spec.gpus)]}
    return {
        **devices,
        "CapDrop": ["ALL"],
        "CapAdd": [name.removeprefix("CAP_") for name in added],
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={json.dumps(platform.seccomp)}"],
        "ReadonlyRootfs": not (platform.writable_root or root_is_writable(spec)),
        "Privileged": False,
        # Also with a network: `container_network` opens the way out.
        "NetworkMode": "none",
        **({} if spec.network.closed else _NAMES),
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "PidsLimit": limits.pids,
        "Memory": limits.memory_bytes,
        # Memory plus swap: no swap.
        "MemorySwap": limits.memory_bytes,
        **({"KernelMemoryTCP": socket_bytes(limits)} if platform.separate_sockets else {}),
        "NanoCpus": int(limits.cpus * _NANO),
        "Ulimits": [core, files],
        "ShmSize": limits.tmp_bytes,
        "Tmpfs": _tmpfs(spec, platform),
        **({"Binds": created} if created else {}),
        "Mounts": [
            *(mount.to_json() for mount in platform.mounts if not mount.created),
            *(
                _image_volume(number, path, sandbox_id, platform)
                for number, path in enumerate(platform.image_volumes)
            ),
        ],
        "MaskedPaths": list(MASKED),
        "ReadonlyPaths": list(READ_ONLY),
        # The container's log only contains the reason why it could not start.
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "16k", "max-file": "1"}},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Init": False,
        "OomScoreAdj": 500,
    }


def _device_request(gpus: GpuRequest) -> dict[str, Any]:
    """Return the engine's request: by the Container Device Interface for names of it, otherwise
    by a driver that has GPUs.
    """
    if gpus.ids and all("=" in gpu for gpu in gpus.ids):
        return {"Driver": "cdi", "DeviceIDs": list(gpus.ids)}
    driver: dict[str, Any] = {"Driver": "", "Capabilities": [["gpu"]]}
    if gpus.ids:
        return {**driver, "DeviceIDs": list(gpus.ids)}
    return {**driver, "Count": gpus.count}


def _image_volume(
    number: int, path: str, sandbox_id: SandboxId, platform: ContainerPlatform
) -> dict[str, Any]:
    """Return the mount of an image volume, with the image's content and as restricted as its
    root. It is named and labelled because an engine allows no anonymous volume to be read-only.
    """
    return {
        "Type": "volume",
        "Source": resource_names.image_volume_name(sandbox_id, number),
        "Target": path,
        "ReadOnly": True,
        "VolumeOptions": {"Labels": labels(resource_names.CELL, platform.owner, sandbox_id)},
    }


def _tmpfs(spec: CellSpec, platform: ContainerPlatform) -> dict[str, str]:
    runner_ids = f"uid={RUNNER_ID},gid={RUNNER_ID}"
    quiet = "rw,nosuid,nodev"
    mounts = {
        TMP: f"{quiet},exec,mode=1777,size={spec.limits.tmp_bytes}",
        "/run": f"{quiet},exec,mode=755,size={_RUN_BYTES}",
        resource_names.STATE_DIR: f"{quiet},noexec,mode=711,size={_STATE_BYTES},{runner_ids}",
    }
    if spec.image.kind == "engine":
        # An image of the store has a link to /tmp there.
        mounts[VAR_TMP] = mounts[TMP]
    if platform.writable_root:
        # The runner was put into the image's own layer, where a tmpfs would hide it.
        del mounts["/run"]
    if all(mount.target != resource_names.LISTEN_DIR for mount in platform.mounts):
        mounts[resource_names.LISTEN_DIR] = (
            f"{quiet},noexec,mode=700,size={_LISTEN_BYTES},{runner_ids}"
        )
    return mounts
