"""bubblewrap's arguments for one sandbox: a pure function of the spec and the host's facts.

Order matters here: a later mount covers an earlier one, and `--remount-ro /` must follow every
directory made on the root. Descriptor numbers are those of the launcher (listen 3, ready 4,
info 5, args 6, user namespace 7, seccomp 8 and 9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandkasten.model.spec import (
    HOME,
    RUNNER_ID,
    TMP,
    USER_ID,
    WORKSPACE,
    CellSpec,
    base_environment,
)

if TYPE_CHECKING:
    from sandkasten.linux.hostroot import HostRoot

RUNNER_DIR = "/run/sandkasten"
LISTEN_FD, READY_FD, INFO_FD, USERNS_FD, SECCOMP_FD = 3, 4, 5, 7, 8
# A command is at most 1 MiB and lies here while it is read; several shells may do so at once.
_STATE_BYTES = 8 << 20
# To become the user, to empty that user's bounding set, and to end its processes.
RUNNER_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL")


@dataclass(frozen=True, slots=True)
class Ground:
    """Where the launcher has put things; `ranged`: a range of ids (root), not one id."""

    stage: str
    ranged: bool
    root: HostRoot
    seccomp_filters: int = 2


def bwrap_args(spec: CellSpec, ground: Ground) -> list[str]:
    return [
        *_namespaces(spec, ground),
        *_root_file_system(ground),
        # What of it tells of the host is masked by the launcher, before any code runs.
        "--proc", "/proc",
        *_devices(spec),
        *_places(spec, ground),
        # Last: nothing can be added to the root after this.
        "--remount-ro", "/",
        "--chdir", "/",
        *_environment(spec),
        *_seccomp(ground.seccomp_filters),
        "--info-fd", str(INFO_FD),
        "--as-pid-1",
    ]  # fmt: skip


def runner_command(ground: Ground) -> list[str]:
    command = [
        f"{RUNNER_DIR}/runner",
        "--listen-fd", str(LISTEN_FD),
        "--ready-fd", str(READY_FD),
        "--state-dir", f"{RUNNER_DIR}/state",
        "--workspace", WORKSPACE,
        "--home", HOME,
    ]  # fmt: skip
    if ground.ranged:
        command += ["--user", f"{USER_ID}:{USER_ID}"]
    return command


def _namespaces(spec: CellSpec, ground: Ground) -> list[str]:
    args = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup"]
    args += ["--hostname", spec.hostname, "--new-session", "--cap-drop", "ALL"]
    if ground.ranged:
        args += ["--userns", str(USERNS_FD), "--uid", str(RUNNER_ID), "--gid", str(RUNNER_ID)]
        for capability in RUNNER_CAPABILITIES:
            args += ["--cap-add", capability]
    else:
        args += ["--unshare-user", "--disable-userns", "--uid", str(USER_ID), "--gid", str(USER_ID)]
    return args


def _root_file_system(ground: Ground) -> list[str]:
    args = ["--ro-bind", "/usr", "/usr"]
    for name, target in ground.root.links:
        args += ["--symlink", target, f"/{name}"]
    for name in ground.root.directories:
        args += ["--ro-bind", f"/{name}", f"/{name}"]
    return [*args, "--ro-bind", f"{ground.stage}/etc", "/etc"]


def _devices(spec: CellSpec) -> list[str]:
    return [
        "--dev", "/dev",
        "--perms", "1777", "--size", str(spec.limits.tmp_bytes), "--tmpfs", "/dev/shm",  # noqa: S108
        "--remount-ro", "/dev",
    ]  # fmt: skip


def _places(spec: CellSpec, ground: Ground) -> list[str]:
    return [
        "--perms", "1777", "--size", str(spec.limits.tmp_bytes), "--tmpfs", TMP,
        "--perms", "0755", "--dir", "/run",
        "--perms", "0755", "--size", str(_STATE_BYTES), "--tmpfs", RUNNER_DIR,
        "--perms", "0755", "--dir", f"{RUNNER_DIR}/state",
        "--ro-bind", f"{ground.stage}/runner", f"{RUNNER_DIR}/runner",
        "--perms", "0755", "--dir", "/home",
        "--bind", f"{ground.stage}/volume/workspace", WORKSPACE,
        "--bind", f"{ground.stage}/volume/home", HOME,
        "--symlink", WORKSPACE.removeprefix("/"), "/work",
        "--perms", "0755", "--dir", "/var",
        "--symlink", "../tmp", "/var/tmp",  # noqa: S108
        "--symlink", "../run", "/var/run",
    ]  # fmt: skip


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
