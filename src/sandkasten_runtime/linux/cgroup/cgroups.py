"""Control groups, v1, hybrid and v2, written directly.

Everything that depends on the version is a pure mapping (`parse_mounts`, `plan`, `read_usage`'s
table), so that a layout this machine does not have can still be tested. A limit without a
controller is listed in `Plan.missing`, never dropped silently. Effects raise OSError only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sandkasten.model.sandbox.limits import Limits

GROUP = "sandkasten"
CPU_PERIOD_US = 100_000
# On v1 the buffers of TCP and UDP sockets have their own counter, which counts only sockets
# that are made after it has a limit. A sandbox may use this part of its memory in addition.
_SOCKET_PART = 4
_SOCKET_LEAST_BYTES = 16 * 1024 * 1024
SOCKET_LIMIT = "memory.kmem.tcp.limit_in_bytes"
# The kernel empties a group shortly after its last process is dead; if it takes longer, something
# lives.
REMOVE_DEADLINE_S = 5.0

Controller = Literal["memory", "pids", "cpu", "cpuacct", "freezer"]
CONTROLLERS: tuple[Controller, ...] = ("memory", "pids", "cpu", "cpuacct", "freezer")
# These set no limit, so they may be missing: v2 counts and freezes in every group.
_NO_LIMIT: frozenset[Controller] = frozenset({"cpuacct", "freezer"})


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where each v1 controller is mounted, and the v2 tree with the controllers it carries."""

    v1: Mapping[str, str]
    v2: str | None = None
    v2_controllers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Write:
    path: str
    value: str
    optional: bool = False
    """Missing on some kernels (swap accounting); the limit then has nothing to enforce."""


@dataclass(frozen=True, slots=True)
class CgroupPlan:
    """All that is done for one group, in order: directories, values, and the ways to join.

    A process joins v1 by writing itself to `tasks` (that skips a lock whose wait is a kernel grace
    period, 10 ms and more, which `cgroup.procs` takes) and v2 by being started there.
    """

    directories: tuple[str, ...]
    writes: tuple[Write, ...] = ()
    tasks: tuple[str, ...] = ()
    v2_directory: str | None = None
    missing: tuple[str, ...] = ()


def parse_mounts(mountinfo: str, v2_controllers: str = "") -> Hierarchies:
    """Parse /proc/self/mountinfo (and `cgroup.controllers` of the v2 root)."""
    v1: dict[str, str] = {}
    v2: str | None = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        where = fields[4]
        if kind[0] == "cgroup2":
            v2 = v2 or where
        elif kind[0] == "cgroup":
            for option in kind[2].split(","):
                if option in CONTROLLERS:
                    v1.setdefault(option, where)
    return Hierarchies(v1, v2, frozenset(v2_controllers.split()) & frozenset(CONTROLLERS))


def everywhere(mountinfo: str, name: str, *, parent: str = GROUP) -> tuple[str, ...]:
    """Return the group's directory in every mounted hierarchy: a runtime joins them all."""
    paths: dict[str, None] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) >= 5 and kind and kind[0] in ("cgroup", "cgroup2"):
            paths[f"{fields[4]}/{parent}/{name}"] = None
    return tuple(paths)


def detect() -> Hierarchies:
    text = Path("/proc/self/mountinfo").read_text()
    first = parse_mounts(text)
    if first.v2 is None:
        return first
    try:
        controllers = Path(first.v2, "cgroup.controllers").read_text()
    except OSError:
        controllers = ""
    return parse_mounts(text, controllers)


def plan(on: Hierarchies, name: str, limits: Limits, *, parent: str = GROUP) -> CgroupPlan:
    """Map limits to files. Pure; `name` is one path component."""
    directories: list[str] = []
    writes: list[Write] = []
    missing: list[str] = []

    def at(root: str) -> str:
        path = f"{root}/{parent}/{name}"
        if path not in directories:
            directories.append(path)
        return path

    quota = max(1000, round(limits.cpus * CPU_PERIOD_US))
    for controller in CONTROLLERS:
        if controller in on.v1:
            where = at(on.v1[controller])
            writes += _v1_writes(controller, where, limits, quota)
        elif on.v2 is not None and controller in on.v2_controllers:
            where = at(on.v2)
            writes += _v2_writes(controller, where, limits, quota)
        elif controller not in _NO_LIMIT:
            missing.append(controller)
    tasks = tuple(f"{d}/tasks" for d in directories if on.v2 is None or not d.startswith(on.v2))
    v2 = at(on.v2) if on.v2 is not None else None
    return CgroupPlan(tuple(directories), tuple(writes), tasks, v2, tuple(missing))


def socket_bytes(limits: Limits) -> int:
    """Return the limit of socket buffers where they have their own counter."""
    return max(_SOCKET_LEAST_BYTES, limits.memory_bytes // _SOCKET_PART)


def _v1_writes(controller: Controller, where: str, limits: Limits, quota: int) -> list[Write]:
    match controller:
        case "memory":
            size = str(limits.memory_bytes)
            return [
                Write(f"{where}/memory.limit_in_bytes", size),
                Write(f"{where}/memory.memsw.limit_in_bytes", size, optional=True),
                Write(f"{where}/{SOCKET_LIMIT}", str(socket_bytes(limits)), optional=True),
            ]
        case "pids":
            return [Write(f"{where}/pids.max", str(limits.pids))]
        case "cpu":
            return [
                Write(f"{where}/cpu.cfs_period_us", str(CPU_PERIOD_US)),
                Write(f"{where}/cpu.cfs_quota_us", str(quota)),
            ]
        case "cpuacct" | "freezer":
            return []


def _v2_writes(controller: Controller, where: str, limits: Limits, quota: int) -> list[Write]:
    match controller:
        case "memory":
            return [
                Write(f"{where}/memory.max", str(limits.memory_bytes)),
                Write(f"{where}/memory.swap.max", "0", optional=True),
                # One process over the limit must not take the runner with it.
                Write(f"{where}/memory.oom.group", "0", optional=True),
            ]
        case "pids":
            return [Write(f"{where}/pids.max", str(limits.pids))]
        case "cpu":
            return [Write(f"{where}/cpu.max", f"{quota} {CPU_PERIOD_US}")]
        case "cpuacct" | "freezer":
            return []


def make(on: Hierarchies, planned: CgroupPlan) -> None:
    """Create directories and write values. Raise OSError if the host refuses (nothing is undone
    here).
    """
    if on.v2 is not None and on.v2_controllers:
        _delegate(on)
    for directory in planned.directories:
        _mkdir(directory)
    for write in planned.writes:
        try:
            _write(write.path, write.value)
        except FileNotFoundError:
            if not write.optional:
                raise


def limits_all(on: Hierarchies) -> bool:
    """Return whether every limit has a controller here."""
    return all(
        controller in on.v1 or (on.v2 is not None and controller in on.v2_controllers)
        for controller in CONTROLLERS
        if controller not in _NO_LIMIT
    )


def resize(planned: CgroupPlan) -> None:
    """Write the values of a group that exists. Raise OSError.

    On v1, the limit of memory with swap is never below that of memory without it, so what the
    kernel refuses is written again after the rest.
    """
    refused: list[Write] = []
    for write in planned.writes:
        try:
            _write(write.path, write.value)
        except FileNotFoundError:
            if not write.optional:
                raise
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
            refused.append(write)
    for write in refused:
        _write(write.path, write.value)


def _mkdir(directory: str) -> None:
    # The parent is removed when it is empty, perhaps by another process right now.
    for _ in range(8):
        try:
            os.mkdir(directory)
        except FileExistsError:
            return
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(directory))
        else:
            return
    os.mkdir(directory)


def reserve(directories: Iterable[str]) -> None:
    """Create the group in hierarchies that we set nothing in, for a runtime that joins them all.

    The last sandbox of another process removes the common parent, which would fail the runtime. If
    the group cannot be created, the runtime reports the reason better.
    """
    for directory in directories:
        with contextlib.suppress(OSError):
            _mkdir(directory)


def _delegate(on: Hierarchies) -> None:
    """Enable a controller on every level above: v2 requires it."""
    wanted = " ".join(f"+{c}" for c in sorted(on.v2_controllers))
    assert on.v2 is not None
    _write(f"{on.v2}/cgroup.subtree_control", wanted)
    parent = f"{on.v2}/{GROUP}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(parent)
    _write(f"{parent}/cgroup.subtree_control", wanted)


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def kill(planned: CgroupPlan) -> bool:
    """Kill every process of the group at once; return False if the kernel has no such file."""
    if planned.v2_directory is None:
        return False
    try:
        _write(f"{planned.v2_directory}/cgroup.kill", "1")
    except OSError:
        return False
    return True


def populated(planned: CgroupPlan) -> bool:
    """Return whether a process still lives in any of the group's directories."""
    for directory in planned.directories:
        try:
            with open(f"{directory}/cgroup.procs") as file:
                if file.read(1):
                    return True
        except OSError:
            continue
    return False


def remove(planned: CgroupPlan) -> None:
    """Remove the emptied group and, if it was the last, its parent. Blocks for at most 5 s."""
    deadline = time.monotonic() + REMOVE_DEADLINE_S
    for directory in planned.directories:
        while True:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                break
            except OSError as exc:
                if exc.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.0005)
            else:
                break
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(directory))


def usage(on: Hierarchies, name: str, *, parent: str = GROUP) -> Usage:
    """Return the kernel's counters; a missing file gives None."""

    def at(controller: Controller) -> tuple[str | None, bool]:
        if controller in on.v1:
            return f"{on.v1[controller]}/{parent}/{name}", True
        if on.v2 is not None and (controller in on.v2_controllers or controller == "cpuacct"):
            return f"{on.v2}/{parent}/{name}", False
        return None, False

    memory, memory_v1 = at("memory")
    pids, _ = at("pids")
    cpu, cpu_v1 = at("cpuacct")
    cpu_usec = _number(cpu, "cpuacct.usage") if cpu_v1 else _keyed(cpu, "cpu.stat", "usage_usec")
    if cpu_v1 and cpu_usec is not None:
        cpu_usec //= 1000
    used = _number(memory, "memory.usage_in_bytes" if memory_v1 else "memory.current")
    peak = _number(memory, "memory.max_usage_in_bytes" if memory_v1 else "memory.peak")
    if memory_v1 and used is not None and peak is not None:
        # v2 includes these.
        used += _number(memory, "memory.kmem.tcp.usage_in_bytes") or 0
        peak += _number(memory, "memory.kmem.tcp.max_usage_in_bytes") or 0
    return Usage(
        memory_bytes=used,
        memory_peak_bytes=peak,
        memory_limit_bytes=_number(memory, "memory.limit_in_bytes" if memory_v1 else "memory.max"),
        cpu_usec=cpu_usec,
        pids=_number(pids, "pids.current"),
        pids_limit=_number(pids, "pids.max"),
        oom_kills=_keyed(
            memory, "memory.oom_control" if memory_v1 else "memory.events", "oom_kill"
        ),
        pids_refused=_keyed(pids, "pids.events", "max"),
    )


def _number(directory: str | None, file: str) -> int | None:
    if directory is None:
        return None
    try:
        text = Path(directory, file).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _keyed(directory: str | None, file: str, key: str) -> int | None:
    if directory is None:
        return None
    try:
        text = Path(directory, file).read_text()
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdigit():
            return int(value)
    return None
