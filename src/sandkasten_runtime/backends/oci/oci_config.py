"""The `config.json` of one sandbox: a pure function of the spec and the prepared platform.

Host paths are those of the launcher's stage, which only the runtime sees. Every mount point is in
`places`, so that no runtime has to create one in a root it may not write. Runtimes get different
settings only where necessary: `runc` gets the masks, the filter and the group that protect a shared
kernel; gVisor has its own kernel inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import (
    E2B_HOME,
    HOME,
    RUNNER_ID,
    TMP,
    WORKSPACE,
    CellSpec,
    base_environment,
    home,
    root_is_writable,
    user_id,
    writes_to_host,
)
from sandkasten_runtime.linux.confinement import capabilities
from sandkasten_runtime.linux.confinement.id_ranges import COUNT
from sandkasten_runtime.linux.launch_plan import RESOLV, mount_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_runtime.backends.oci.cdi import DeviceEdits
    from sandkasten_runtime.linux.storage.host_root import HostRoot

Kind = Literal["runc", "gvisor"]

RUNNER_DIR = "/run/sandkasten"
SOCKET_DIR = f"{RUNNER_DIR}/listen"
SOCKET_NAME = "socket"
LISTEN_FD, READY_FD = 3, 4
# A command is at most 1 MiB and is here while it is read; several shells may do so at once.
_STATE_BYTES = 8 << 20
# Lock files and pid files.
_RUN_BYTES = 16 << 20
_CAPABILITY_SETS = ("ambient", "bounding", "effective", "inheritable", "permitted")
# The whole machine has about 3,000; a session uses one or two.
_TERMINALS = 32
_QUIET = ("nosuid", "nodev")


@dataclass(frozen=True, slots=True)
class OciPlatform:
    """What the host and the launcher have prepared."""

    kind: Kind
    stage: str
    base: int
    """Host id of the sandbox's id 0."""
    host: HostRoot
    cgroups_path: str | None = None
    """The cgroup in which runc puts the sandbox; gVisor is already started inside its group."""
    seccomp: Mapping[str, object] | None = None
    files: frozenset[str] = frozenset()
    """Sources of host mounts that are not directories."""
    devices: DeviceEdits | None = None
    """Requested devices; their mounts and variables are in the spec."""


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A required mount point; the launcher creates it if the image lacks it."""

    path: str
    mode: int = 0o755
    directory: bool = True


def config(spec: CellSpec, platform: OciPlatform) -> dict[str, object]:
    linux: dict[str, object] = {
        "namespaces": _namespaces(spec, platform),
        "uidMappings": [{"containerID": 0, "hostID": platform.base, "size": COUNT}],
        "gidMappings": [{"containerID": 0, "hostID": platform.base, "size": COUNT}],
        "rootfsPropagation": "private",
        # Limits are written to the group directly, before the runtime starts.
        "resources": _resources(platform),
    }
    if platform.cgroups_path is not None:
        linux["cgroupsPath"] = platform.cgroups_path
    if platform.seccomp is not None:
        linux["seccomp"] = platform.seccomp
    if platform.kind == "runc":
        hidden = (*platform.host.proc_files, *platform.host.proc_dirs)
        linux["maskedPaths"] = [f"/proc/{name}" for name in hidden]
        linux["readonlyPaths"] = ["/proc/sys"]
    return {
        **_hooks(platform),
        "ociVersion": "1.0.2",
        "hostname": spec.hostname,
        "process": _process(spec, platform),
        "root": {"path": f"{platform.stage}/root", "readonly": not root_is_writable(spec)},
        "mounts": _mounts(spec, platform),
        "linux": linux,
    }


def places(spec: CellSpec, platform: OciPlatform) -> list[MountPoint]:
    """Return the mount points, outer ones first. Those below /run are our own names, which no
    image has.
    """
    points = [MountPoint("/proc"), MountPoint("/dev"), MountPoint(TMP, 0o1777), MountPoint("/run")]
    if spec.image.kind == "host":
        points += [MountPoint("/usr"), MountPoint("/etc"), MountPoint("/var")]
        points += [MountPoint(f"/{name}") for name in platform.host.directories]
    points += [
        MountPoint(f"{RUNNER_DIR}/state"),
        MountPoint(f"{RUNNER_DIR}/runner", directory=False),
    ]
    if platform.kind == "gvisor":
        points.append(MountPoint(SOCKET_DIR))
    points.append(MountPoint(WORKSPACE))
    if spec.image.home_is_free:
        points.append(MountPoint(E2B_HOME))
    points.append(MountPoint(home(spec), 0o700) if spec.profile == "dev" else MountPoint(HOME))
    if spec.image.kind == "layers" and not spec.network.closed:
        points.append(MountPoint(RESOLV, 0o644, directory=False))
    return points + [
        MountPoint(mount.target, directory=mount.path not in platform.files)
        for mount in spec.mounts
    ]


def runner_command(spec: CellSpec, platform: OciPlatform) -> list[str]:
    """Return the runner's command.

    An inherited listener cannot be unlinked; gVisor passes none, so there the runner binds one. Its
    directory belongs to the runner's id and is closed to the user's.
    """
    listen = ["--listen-fd", str(LISTEN_FD)]
    if platform.kind == "gvisor":
        listen = ["--listen", f"{SOCKET_DIR}/{SOCKET_NAME}", "--run-as", f"{RUNNER_ID}:{RUNNER_ID}"]
    command = [
        f"{RUNNER_DIR}/runner",
        *listen,
        "--ready-fd", str(READY_FD),
        "--state-dir", f"{RUNNER_DIR}/state",
        "--workspace", WORKSPACE,
        "--home", home(spec),
        "--user", f"{user_id(spec)}:{user_id(spec)}",
    ]  # fmt: skip
    if spec.profile == "dev":
        command += ["--user-capabilities", f"{capabilities.bits(capabilities.DEV_USER):x}"]
    return [*command, *(["--no-set-id"] if writes_to_host(spec) else ())]


def _namespaces(spec: CellSpec, platform: OciPlatform) -> list[dict[str, str]]:
    # A sandbox with a network is started in the namespace that the launcher has made for it.
    network = ["network"] if spec.network.closed else []
    kinds = ("pid", *network, "ipc", "uts", "mount", "cgroup")
    user = {"type": "user"}
    if platform.kind == "runc":
        # Created by the launcher: no other one can be created inside it, and its creator is not
        # host root.
        user["path"] = f"{platform.stage}/userns"
    namespaces = [*({"type": kind} for kind in kinds), user]
    if platform.kind == "gvisor" and not spec.network.closed:
        # It starts in a new one unless the plan names one.
        namespaces.append({"type": "network", "path": f"{platform.stage}/netns"})
    return namespaces


def _process(spec: CellSpec, platform: OciPlatform) -> dict[str, object]:
    # gVisor has no ambient capabilities: only root starts with any there, and the runner drops them
    # itself.
    first = 0 if platform.kind == "gvisor" else RUNNER_ID
    # The runner can only pass on what it has itself.
    extra = capabilities.DEV_USER if spec.profile == "dev" else ()
    granted = sorted({*capabilities.RUNNER, *extra})
    process: dict[str, object] = {
        "terminal": False,
        "user": {"uid": first, "gid": first, "umask": 0o022},
        "args": runner_command(spec, platform),
        "env": [f"{name}={value}" for name, value in base_environment(spec).items()],
        "cwd": "/",
        "capabilities": dict.fromkeys(_CAPABILITY_SETS, granted),
        "noNewPrivileges": True,
    }
    if platform.kind == "gvisor":
        # Limits of gVisor's kernel; on a shared kernel they are inherited from the launcher,
        # because runc may not set those of a process in a namespace that is not its own.
        limits = {"RLIMIT_NOFILE": spec.limits.open_files, "RLIMIT_CORE": 0}
        process["rlimits"] = [{"type": n, "hard": v, "soft": v} for n, v in limits.items()]
    return process


def _mounts(spec: CellSpec, platform: OciPlatform) -> list[dict[str, object]]:
    stage = platform.stage
    mounts = []
    if spec.image.kind == "host":
        shown = ("usr", *platform.host.directories)
        mounts += [_bind(platform.host.source(name, stage), f"/{name}") for name in shown]
        mounts.append(_bind(f"{stage}/etc", "/etc"))
    mounts += [
        _mount("/proc", "proc", *_QUIET, "noexec"),
        _devices(platform),
        _mount(
            "/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620",
            f"max={_TERMINALS}",
        ),
        _memory("/dev/shm", 0o1777, spec.limits.tmp_bytes),  # noqa: S108
        _memory(TMP, 0o1777, spec.limits.tmp_bytes),
        *([_memory("/run", 0o755, _RUN_BYTES)] if spec.image.kind == "layers" else ()),
        _memory(f"{RUNNER_DIR}/state", 0o711, _STATE_BYTES, f"uid={RUNNER_ID}", f"gid={RUNNER_ID}"),
        _bind(f"{stage}/runner", f"{RUNNER_DIR}/runner"),
        _bind(f"{stage}/volume/workspace", WORKSPACE, "rw"),
    ]  # fmt: skip
    if spec.image.home_is_free:
        mounts.append(_bind(f"{stage}/volume/workspace", E2B_HOME, "rw"))
    if spec.profile != "dev":
        mounts.append(_bind(f"{stage}/volume/home", HOME, "rw"))
    if platform.kind == "gvisor":
        mounts.append(_bind(f"{stage}/listen", SOCKET_DIR, "rw"))
    if spec.image.kind == "layers" and not spec.network.closed:
        mounts.append(_bind(f"{stage}/resolv.conf", RESOLV))
    mounts += [
        _bind(f"{stage}/{mount_name(index)}", mount.target, "ro" if mount.owner is None else "rw")
        for index, mount in enumerate(spec.mounts)
    ]
    nodes = () if platform.devices is None else platform.devices.nodes
    # Bound, because a user namespace cannot make device nodes; without nodev, to be usable.
    mounts += [
        {
            "destination": node.target,
            "type": "bind",
            "source": node.source,
            "options": ["bind", "nosuid", "noexec", "rw"],
        }
        for node in nodes
    ]
    return mounts


def _resources(platform: OciPlatform) -> dict[str, object]:
    """Return the devices that the sandbox may open besides the usual ones."""
    if platform.devices is None:
        return {}
    return {
        "devices": [
            {"allow": True, "type": "c", "major": node.major, "minor": node.minor, "access": "rw"}
            for node in platform.devices.nodes
        ]
    }


def _hooks(platform: OciPlatform) -> dict[str, object]:
    if platform.devices is None or not platform.devices.hooks:
        return {}
    hooks: dict[str, list[dict[str, object]]] = {}
    for stage, hook in platform.devices.hooks:
        hooks.setdefault(stage, []).append(hook)
    return {"hooks": hooks}


def _devices(platform: OciPlatform) -> dict[str, object]:
    """Read-only once its entries are created; gVisor has its own devices, and opens them there."""
    access = "rw" if platform.kind == "gvisor" else "ro"
    return _mount("/dev", "tmpfs", *_QUIET, "noexec", access, "mode=755", "size=64k")


def _mount(destination: str, kind: str, *options: str) -> dict[str, object]:
    return {"destination": destination, "type": kind, "source": kind, "options": list(options)}


def _memory(destination: str, mode: int, size: int, *more: str) -> dict[str, object]:
    return _mount(destination, "tmpfs", *_QUIET, f"mode={mode:o}", f"size={size}", *more)


def _bind(source: str, destination: str, access: str = "ro") -> dict[str, object]:
    options = ["bind", *_QUIET, access]
    return {"destination": destination, "type": "bind", "source": source, "options": options}
