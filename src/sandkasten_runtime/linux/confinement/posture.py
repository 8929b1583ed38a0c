"""How closed a live process really is, read from the host's /proc, and its deviations.

`read` is the only effect; `deviations` is pure. The process under test is never asked: its own
report would be worthless.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Prefix of the deviation that a program shows for an instant when it starts.
INHERITED = "descriptors were inherited"
NAMESPACES = ("user", "pid", "net", "ipc", "uts", "mnt", "cgroup")
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_GIVEN_SETS = ("CapPrm", "CapEff", "CapBnd")
_FORBIDDEN_TYPES = frozenset({"sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs"})
# bwrap's own device nodes are bind mounts of these; they cannot be nodev.
_DEVICE_PREFIX = "/dev/"
_WRITABLE = (
    "/workspace", "/home/sandbox", "/home/user", "/tmp", "/proc",  # noqa: S108
    "/run/sandkasten", "/run/sandkasten/state",
)  # fmt: skip

_MASKS = frozenset({("/null", "devtmpfs"), ("/null", "tmpfs"), ("/", "tmpfs")})


@dataclass(frozen=True, slots=True)
class Posture:
    status: Mapping[str, str]
    namespaces: Mapping[str, str]
    mountinfo: str
    descriptors: tuple[int, ...]
    oom_score_adj: int


def read(pid: int) -> Posture:
    """Read the posture. Raise OSError if the process is gone or may not be inspected."""
    root = Path(f"/proc/{pid}")
    status = {}
    for line in (root / "status").read_text().splitlines():
        key, _, value = line.partition(":")
        status[key] = value.strip()
    return Posture(
        status=status,
        namespaces={n: os.readlink(root / "ns" / n) for n in NAMESPACES},
        mountinfo=(root / "mountinfo").read_text(),
        descriptors=tuple(sorted(int(n) for n in os.listdir(root / "fd"))),
        oom_score_adj=int((root / "oom_score_adj").read_text()),
    )


def deviations(
    actual: Posture,
    host: Posture,
    *,
    ids: range | None,
    capabilities: int = 0,
    writable: Sequence[str] = (),
) -> list[str]:
    """Return everything that is less closed than required; empty is good.

    `ids`: the host ids of the sandbox, or None if it has the caller's own. `capabilities`: the bits
    it was given, never to be inherited by its children. `writable`: mount points that may be
    written to, beyond the usual ones.
    """
    result = []
    for name in _CAPABILITY_SETS:
        granted = capabilities if name in _GIVEN_SETS else 0
        has = actual.status.get(name)
        if has is None or int(has, 16) != granted:
            wanted = f"exactly {granted:x}" if granted else "empty"
            result.append(f"{name} is not {wanted}: {has}")
    if actual.status.get("NoNewPrivs") != "1":
        result.append("no_new_privs is not set")
    if actual.status.get("Seccomp") != "2":
        result.append("no seccomp filter is in force")
    result += [
        f"the {name} namespace is the host's"
        for name in NAMESPACES
        if actual.namespaces[name] == host.namespaces[name]
    ]
    for field in ("Uid", "Gid"):
        values = [int(v) for v in actual.status.get(field, "0").split()]
        if 0 in values:
            result.append(f"{field} is 0 on the host")
        elif ids is not None and not all(v in ids for v in values):
            result.append(f"{field} {values} is outside the sandbox's range")
    if actual.status.get("Groups") and ids is not None:
        result.append(f"supplementary groups were inherited: {actual.status['Groups']}")
    if any(fd > 2 for fd in actual.descriptors):
        result.append(f"{INHERITED}: {actual.descriptors}")
    result += mount_deviations(actual.mountinfo, writable)
    return result


# A kernel in user space needs these to serve files of any owner, to confine itself and to hold the
# processes it runs code in: CHOWN to SETPCAP, SYS_CHROOT, SYS_PTRACE; all within its own namespace.
_KERNEL_CAPABILITIES = 0x000C_01FF


def kernel_deviations(
    actual: Posture, host: Posture, *, ids: range, capabilities: int = 0
) -> list[str]:
    """Return the deviations of a process that is a sandbox's own kernel, or serves files to one.

    Its capabilities apply to its user namespace: they reach the sandbox's files, nothing else.
    `capabilities`: what code inside was given, which such a kernel holds too.
    """
    allowed = _KERNEL_CAPABILITIES | capabilities
    result = [
        f"{name} holds too much: {actual.status.get(name)}"
        for name in _CAPABILITY_SETS
        if int(actual.status.get(name, "-1"), 16) & ~allowed
    ]
    if actual.status.get("NoNewPrivs") != "1":
        result.append("no_new_privs is not set")
    if actual.status.get("Seccomp") != "2":
        result.append("no seccomp filter is in force")
    result += [
        f"the {name} namespace is the host's"
        for name in ("user", "net", "ipc", "uts", "mnt")
        if actual.namespaces[name] == host.namespaces[name]
    ]
    for field in ("Uid", "Gid"):
        values = [int(v) for v in actual.status.get(field, "0").split()]
        if not all(v in ids for v in values):
            result.append(f"{field} {values} is outside the sandbox's range")
    return result


def mount_deviations(mountinfo: str, writable: Sequence[str] = ()) -> list[str]:
    result = []
    open_to_all = (*_WRITABLE, *writable)
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 6:
            continue
        where, options = fields[4], set(fields[5].split(","))
        kind = right.split()[0]
        if kind in _FORBIDDEN_TYPES:
            result.append(f"{kind} is mounted on {where}")
        # Entries of /proc are hidden by the null device or an empty directory.
        if where.startswith("/proc/") and "ro" in options and (fields[3], kind) in _MASKS:
            continue
        if "nosuid" not in options:
            result.append(f"{where} is not nosuid")
        if "nodev" not in options and not where.startswith(_DEVICE_PREFIX):
            result.append(f"{where} is not nodev")
        if "rw" in options and where not in open_to_all and not where.startswith(_DEVICE_PREFIX):
            result.append(f"{where} is writable")
        if any(f.startswith(("shared:", "master:")) for f in fields[6:]):
            result.append(f"{where} is not private")
    return result


def processes_in(pid: int) -> list[int]:
    """Return the host pids of everything in the same pid namespace as `pid`."""
    wanted = os.readlink(f"/proc/{pid}/ns/pid")
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.readlink(f"/proc/{name}/ns/pid") == wanted:
                    pids.append(int(name))
            except OSError:
                continue
    return pids
