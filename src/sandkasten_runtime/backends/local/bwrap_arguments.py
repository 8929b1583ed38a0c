"""bubblewrap's arguments for one sandbox: a pure function of the spec and the host's facts.

Order matters: a later mount covers an earlier one, and `--remount-ro /` must follow every directory
created on the root. Descriptor numbers are those of the launcher (listen 3, ready 4, info 5, args
6, user namespace 7, seccomp 8 and 9). The launcher masks what /proc reveals about the host before
any code runs.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import (
    E2B_HOME,
    HOME,
    RUNNER_DIR,
    RUNNER_ID,
    TMP,
    USER_ID,
    WORKSPACE,
    CellSpec,
    base_environment,
    home,
    root_is_writable,
    user_id,
    writes_to_host,
)
from sandkasten_runtime.linux.confinement import capabilities
from sandkasten_runtime.linux.launch_plan import RESOLV, mount_name

if TYPE_CHECKING:
    from sandkasten_runtime.linux.storage.host_root import HostRoot

LISTEN_FD, READY_FD, INFO_FD, USERNS_FD, SECCOMP_FD = 3, 4, 5, 7, 8
# A command is at most 1 MiB and is here while it is read; several shells may do so at once.
_STATE_BYTES = 8 << 20
# Lock files and pid files.
_RUN_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class BwrapPlatform:
    """Paths that the launcher has prepared. `ranged`: a range of ids (root) instead of one id."""

    stage: str
    ranged: bool
    root: HostRoot
    seccomp_filters: int = 2


def bwrap_args(spec: CellSpec, platform: BwrapPlatform) -> list[str]:
    on_image = spec.image.kind == "layers"
    return [
        *_namespaces(spec, platform),
        *(_image_root(platform) if on_image else _host_root(platform)),
        "--proc", "/proc",
        *_devices(spec, platform),
        *(_image_places(spec, platform) if on_image else _host_places(spec, platform)),
        *_mounts(spec, platform),
        # Last: nothing can be added to the root after this.
        *(() if root_is_writable(spec) else ("--remount-ro", "/")),
        "--chdir", "/",
        *_environment(spec),
        *_seccomp(platform.seccomp_filters),
        "--info-fd", str(INFO_FD),
        "--as-pid-1",
    ]  # fmt: skip


def runner_command(spec: CellSpec, platform: BwrapPlatform) -> list[str]:
    command = [
        f"{RUNNER_DIR}/runner",
        "--listen-fd", str(LISTEN_FD),
        "--ready-fd", str(READY_FD),
        "--state-dir", f"{RUNNER_DIR}/state",
        "--workspace", spec.workspace_at,
        "--home", home(spec),
    ]  # fmt: skip
    if platform.ranged:
        command += ["--user", f"{user_id(spec)}:{user_id(spec)}"]
    if spec.profile == "dev":
        command += ["--user-capabilities", f"{capabilities.bits(capabilities.DEV_USER):x}"]
    return [*command, *(["--no-set-id"] if writes_to_host(spec) else ())]


def own_network(spec: CellSpec, platform: BwrapPlatform) -> bool:
    """Return whether the launcher, and not bubblewrap, makes the closed network namespace."""
    return platform.ranged and spec.network.closed


def _namespaces(spec: CellSpec, platform: BwrapPlatform) -> list[str]:
    # In all other cases bubblewrap is started in the namespace that the launcher has made.
    network = ["--unshare-net"] if spec.network.closed and not own_network(spec, platform) else []
    args = ["--unshare-pid", *network, "--unshare-ipc", "--unshare-uts", "--unshare-cgroup"]
    args += ["--hostname", spec.hostname, "--new-session", "--cap-drop", "ALL"]
    if platform.ranged:
        args += ["--userns", str(USERNS_FD), "--uid", str(RUNNER_ID), "--gid", str(RUNNER_ID)]
        # The runner can only pass on what it has itself.
        extra = capabilities.DEV_USER if spec.profile == "dev" else ()
        for capability in dict.fromkeys((*capabilities.RUNNER, *extra)):
            args += ["--cap-add", capability]
    else:
        args += ["--unshare-user", "--disable-userns", "--uid", str(USER_ID), "--gid", str(USER_ID)]
    return args


def _host_root(platform: BwrapPlatform) -> list[str]:
    root, stage = platform.root, platform.stage
    args = ["--ro-bind", root.source("usr", stage), "/usr"]
    for name, target in root.links:
        args += ["--symlink", target, f"/{name}"]
    for name in root.directories:
        args += ["--ro-bind", root.source(name, stage), f"/{name}"]
    return [*args, "--ro-bind", f"{platform.stage}/etc", "/etc"]


def _image_root(platform: BwrapPlatform) -> list[str]:
    return ["--bind", f"{platform.stage}/root", "/"]


def memory_plan(spec: CellSpec, platform: BwrapPlatform) -> list[dict[str, object]]:
    """Return the tmpfs that the launcher mounts on the stage, with a limit on their files.

    bubblewrap cannot set that limit. Root does not need it: there empty files count as memory.
    """
    if platform.ranged:
        return []
    return [
        {"name": "tmp", "bytes": spec.limits.tmp_bytes, "mode": 0o1777},
        {"name": "shm", "bytes": spec.limits.tmp_bytes, "mode": 0o1777},
        {"name": "state", "bytes": _STATE_BYTES, "mode": 0o755},
    ]


def _memory(platform: BwrapPlatform, name: str, perms: str, size: int, path: str) -> list[str]:
    if platform.ranged:
        return ["--perms", perms, "--size", str(size), "--tmpfs", path]
    return ["--bind", f"{platform.stage}/{name}", path]


def _devices(spec: CellSpec, platform: BwrapPlatform) -> list[str]:
    return [
        "--dev", "/dev",
        *_memory(platform, "shm", "1777", spec.limits.tmp_bytes, "/dev/shm"),  # noqa: S108
        "--remount-ro", "/dev",
    ]  # fmt: skip


def _runner_place(platform: BwrapPlatform) -> list[str]:
    return [
        *_memory(platform, "state", "0755", _STATE_BYTES, RUNNER_DIR),
        "--perms", "0755", "--dir", f"{RUNNER_DIR}/state",
        "--ro-bind", f"{platform.stage}/runner", f"{RUNNER_DIR}/runner",
    ]  # fmt: skip


def _host_places(spec: CellSpec, platform: BwrapPlatform) -> list[str]:
    return [
        *_memory(platform, "tmp", "1777", spec.limits.tmp_bytes, TMP),
        "--perms", "0755", "--dir", "/run",
        *_runner_place(platform),
        "--perms", "0755", "--dir", "/home",
        "--bind", f"{platform.stage}/volume/workspace", WORKSPACE,
        "--bind", f"{platform.stage}/volume/home", HOME,
        "--symlink", WORKSPACE.removeprefix("/"), "/work",
        "--bind", f"{platform.stage}/volume/workspace", E2B_HOME,
        "--perms", "0755", "--dir", "/var",
        "--symlink", "../tmp", "/var/tmp",  # noqa: S108
        "--symlink", "../run", "/var/run",
    ]  # fmt: skip


def _image_places(spec: CellSpec, platform: BwrapPlatform) -> list[str]:
    """Mounts on directories that the launcher has verified to exist and not to be symlinks."""
    args = [
        *_memory(platform, "tmp", "1777", spec.limits.tmp_bytes, TMP),
        "--perms", "0755", "--size", str(_RUN_BYTES), "--tmpfs", "/run",
        "--perms", "1777", "--dir", "/run/lock",
        *_runner_place(platform),
        "--bind", f"{platform.stage}/volume/workspace", spec.workspace_at,
    ]  # fmt: skip
    if spec.image.home_is_free:
        args += ["--bind", f"{platform.stage}/volume/workspace", E2B_HOME]
    if not spec.network.closed:
        args += ["--ro-bind", f"{platform.stage}/resolv.conf", RESOLV]
    if spec.profile == "dev":
        return args
    return [*args, "--bind", f"{platform.stage}/volume/home", HOME, "--remount-ro", "/run"]


def _mounts(spec: CellSpec, platform: BwrapPlatform) -> list[str]:
    args: list[str] = []
    for index, mount in enumerate(spec.mounts):
        if spec.image.kind == "host":
            # bubblewrap creates missing parents of a mount, but only accessible to itself.
            for parent in reversed(PurePosixPath(mount.target).parents[:-1]):
                args += ["--perms", "0755", "--dir", str(parent)]
        how = "--ro-bind" if mount.owner is None else "--bind"
        args += [how, f"{platform.stage}/{mount_name(index)}", mount.target]
    return args


def _environment(spec: CellSpec) -> list[str]:
    args = ["--clearenv"]
    for name, value in base_environment(spec).items():
        args += ["--setenv", name, value]
    return args


def _seccomp(filters: int) -> list[str]:
    args: list[str] = []
    for index in range(filters):
        args += ["--add-seccomp-fd", str(SECCOMP_FD + index)]
    return args
