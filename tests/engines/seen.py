"""What an engine has of one sandbox, as the engine and the kernel show it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.engines.reached import Reached

_CGROUPS = Path("/sys/fs/cgroup")


def first_process(engine: Reached, name: str) -> int:
    """Return its pid on the host; engines of tests share the host's kernel."""
    return int(engine.ask("GET", f"/containers/{name}/json")["State"]["Pid"])


def cgroups(pid: int) -> list[str]:
    """Return its cgroup directories, as far as they are visible here."""
    found = []
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        tops = [kinds.removeprefix("name="), *kinds.split(","), "unified" if not kinds else ""]
        if path != "/":
            found += [
                str(at)
                for top in dict.fromkeys(tops)
                if top and (at := _CGROUPS / top / path.lstrip("/")).is_dir()
            ]
    return found


# The engine makes these for every container, and they are its alone.
_OPEN = (
    "/workspace", "/home/sandbox", "/tmp", "/var/tmp", "/run", "/run/sandkasten/state",
    "/run/sandkasten/listen", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/proc",
)  # fmt: skip
_FORBIDDEN = ("sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "bpf", "fusectl")
_IN_MEMORY = (
    "/tmp", "/var/tmp", "/run", "/run/sandkasten/state", "/run/sandkasten/listen", "/dev/shm",
)  # fmt: skip


def reachable(mountinfo: str) -> list[str]:
    """Return the mountinfo lines that are not hidden by a later mount."""
    kept: list[str] = []
    hidden: set[str] = set()
    for line in reversed(mountinfo.splitlines()):
        at = line.split()[4]
        if any(at == over or at.startswith(f"{over}/") for over in hidden):
            continue
        kept.append(line)
        if at != "/":
            hidden.add(at)
    return kept[::-1]


def mount_deviations(mountinfo: str) -> list[str]:
    """What an engine lets nobody say (nosuid of its volumes and of the root) is not asked.

    No program gets more rights by set-id bits all the same, and no device can be opened: these are
    asked by trying.
    """
    found = []
    for line in reachable(mountinfo):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()[0]
        at, options = fields[4], fields[5].split(",")
        mask = at.startswith("/proc/") and fields[3] == "/null"
        if kind in _FORBIDDEN:
            found.append(f"{kind} is mounted on {at}")
        if "rw" in options and at not in _OPEN and not mask:
            found.append(f"{at} is writable")
        if at in _IN_MEMORY and kind == "tmpfs" and not {"nosuid", "nodev"} <= set(options):
            found.append(f"{at} is not nosuid and nodev")
        if any(one.startswith("shared:") for one in fields[6:]):
            found.append(f"{at} is shared with others")
    return found


def told(engine: Reached, sandbox_id: str) -> str:
    """Return everything that the engine tells about the containers and volumes of a sandbox: their
    configuration, commands, logs and the content of the volumes that it keeps for its network.
    """
    found = []
    for name in (one for one in engine.containers() if sandbox_id in one):
        shown = engine.ask("GET", f"/containers/{name}/json")
        found.append(str(shown))
        found += [str(engine.ask("GET", f"/exec/{one}/json")) for one in shown["ExecIDs"] or ()]
        found.append(str(engine.ask("GET", f"/containers/{name}/top")))
        found.append(engine.docker("logs", name))
        for mount in shown["Mounts"]:
            if mount["Destination"] in ("/net", "/opt/sandkasten/tls"):
                found.append(engine.docker("cp", f"{name}:{mount['Destination']}", "-"))
    volumes = [name for name in engine.volumes() if sandbox_id in name]
    return "\n".join([*found, *(str(engine.ask("GET", f"/volumes/{name}")) for name in volumes)])


def things(engine: Reached, sandbox_id: str) -> list[str]:
    """Return containers and volumes labelled with its id."""
    return [
        *(f"container {name}" for name in engine.containers() if sandbox_id in name),
        *(f"volume {name}" for name in engine.volumes() if sandbox_id in name),
    ]
