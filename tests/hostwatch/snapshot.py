"""The state of the host as plain sets and mappings that can be compared.

Knows Linux, and of Sandkasten only the names of its processes and files. It only reads. Objects
that vanish while they are read are left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import subprocess
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

OUR_NAMES = ("bwrap", "sandkasten", "runc", "runsc", "crun", "dockerd", "containerd", "docker-")

# What our cgroups, and those of container engines that tests start, begin with.
_CGROUP_NAMES = ("sandkasten", "sk", "docker", "kube", "containerd", "runsc", "buildkit", "dagger")

# Sandboxes run under uids from here on; nobody else on a normal machine does.
FIRST_SANDBOX_UID = 100_000

MARKER = "SANDKASTEN_TEST_RUN"
"""In the environment of the test run, and so of all it starts and does not clean."""

# Counters and samples: they change on an idle machine.
VOLATILE_SYSCTLS = (
    "fs/aio-nr",
    "fs/binfmt_misc/",  # an automount: listing it would mount it
    "fs/dentry-state",
    "fs/file-nr",
    "fs/inode-nr",
    "fs/inode-state",
    "fs/nfs/",
    "fs/quota/",
    "kernel/ns_last_pid",
    "kernel/perf_event_max_sample_rate",  # lowered by the kernel itself under load
    "kernel/pty/nr",
    "kernel/random/",
    "kernel/sched_domain/",
    "net/netfilter/nf_conntrack_count",
    "vm/stat_refresh",
)

# Come and go with a link of another lane's machine; the link itself is counted.
_OF_A_LINK = re.compile(r"net/ipv[46]/(conf|neigh)/sk[0-9a-f]{8}/")

# Where leftovers of a run would lie. Only the names directly below are looked at.
LITTER_FOLDERS = ("/tmp", "/var/tmp", "/run", "/dev/shm", "/var/lib")
# Folders of our own that may be there for good; what lies in them may not.
STANDING = ("/run/sandkasten", "/var/lib/sandkasten")
# Other people's comings and goings.
FOREIGN_LITTER = ("pytest-of-", "systemd-", "apt", "dpkg", "bash_", "ssh-", "tmux-", "hsperf", ".X")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Each part maps the name of an object to the value whose change is reported."""

    processes: Mapping[str, str]
    mounts: Mapping[str, str]
    loops: Mapping[str, str]
    cgroups: Mapping[str, str]
    netns: Mapping[str, str]
    links: Mapping[str, str]
    firewall: Mapping[str, str]
    sysctls: Mapping[str, str]
    canary: Mapping[str, str]
    files: Mapping[str, str]


def take(canary: Path) -> Snapshot:
    return Snapshot(
        processes=dict(_processes()),
        mounts=_mounts(),
        loops=dict(_loops()),
        cgroups=dict(_cgroups()),
        netns=dict(_network_namespaces()),
        links=dict(_links()),
        firewall=dict(_firewall()),
        sysctls=dict(_sysctls(Path("/proc/sys"))),
        canary=dict(_tree(canary)) | dict(_tree(Path("/etc"))),
        files=dict(_litter()),
    )


def of_canary(canary: Path) -> Snapshot:
    """Return the part that belongs to one run only."""
    nothing: dict[str, str] = {}
    return Snapshot(
        *(nothing if part.name != "canary" else dict(_tree(canary)) for part in fields(Snapshot))
    )


def _pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _processes() -> Iterator[tuple[str, str]]:
    """Ours by name, by uid, by cgroup or by the marker; a zombie counts until it is reaped."""
    marker = f"{MARKER}={os.environ.get(MARKER, '')}".encode()
    own = os.getpid()
    for pid in _pids():
        with contextlib.suppress(OSError):
            head, _, tail = _read(f"/proc/{pid}/stat").rpartition(b")")
            name = head.partition(b"(")[2].decode(errors="replace")
            fields = tail.split()
            state, started = fields[0].decode(), fields[19].decode()
            uid = os.stat(f"/proc/{pid}").st_uid
            ours = (
                name.startswith(OUR_NAMES)
                or uid >= FIRST_SANDBOX_UID
                or b"sandkasten" in _read(f"/proc/{pid}/cgroup")
            )
            if not ours and marker[-1:] != b"=" and pid != own:
                # Zombies and other users' processes have no environment to read.
                with contextlib.suppress(OSError):
                    ours = marker in _read(f"/proc/{pid}/environ").split(b"\0")
            if ours:
                how = "a zombie" if state == "Z" else "alive"
                yield f"{pid}@{started}", f"{name}, uid {uid}, {how}"


def _mounts() -> dict[str, str]:
    seen: Counter[str] = Counter()
    what: dict[str, str] = {}
    for line in _read("/proc/self/mountinfo").decode(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        point, options = left.split()[4:6]
        kind, source = right.split()[:2]
        seen[point] += 1
        what[f"{point}#{seen[point]}"] = f"{kind} from {source} ({options})"
    return what


def _loops() -> Iterator[tuple[str, str]]:
    for device in Path("/sys/block").glob("loop*"):
        with contextlib.suppress(OSError):
            yield device.name, (device / "loop" / "backing_file").read_text().strip()


def _cgroups() -> Iterator[tuple[str, str]]:
    own = _read("/proc/self/cgroup").decode(errors="replace").splitlines()
    ours = {line.split(":", 2)[2] for line in own}
    for line in _read("/proc/self/mountinfo").decode(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] in ("cgroup", "cgroup2"):
            root = left.split()[4]
            for folder, folders, _ in os.walk(root):
                folders[:] = watched_cgroups(folder.removeprefix(root), folders, ours)
                # The empty parent of all sandboxes may stay, as a slice of systemd's does.
                if folder != f"{root}/sandkasten":
                    yield folder, "cgroup"


def watched_cgroups(parent: str, names: Sequence[str], ours: Collection[str]) -> Sequence[str]:
    """Return which children of a cgroup can be made by tests.

    Where this process got a cgroup, so does every login or job: they come and go with the work of
    others. `ours`: the paths of this process.
    """
    given = {path.rpartition("/")[2] for path in ours if path.rpartition("/")[0] == parent}
    if not parent or not given:
        return names
    return [name for name in names if name in given or name.startswith(_CGROUP_NAMES)]


def _network_namespaces() -> Iterator[tuple[str, str]]:
    for folder in ("/run/netns", "/var/run/netns"):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                yield f"{folder}/{name}", "named"
    for pid in _pids():
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/ns/net"), "in use"


def _links() -> Iterator[tuple[str, str]]:
    for link in Path("/sys/class/net").iterdir():
        yield link.name, "a network link"


def _firewall() -> Iterator[tuple[str, str]]:
    """Return rules by table, without their counters; empty where they cannot be read."""
    for program in ("iptables-save", "ip6tables-save"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(
                [program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
            )
            rules = [re.sub(r"\[\d+:\d+\]", "", line) for line in said.stdout.splitlines()]
            yield program, "; ".join(rule for rule in rules if rule[:1] not in ("#", ""))


def _sysctls(root: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk(root):
        inside = Path(folder).relative_to(root).as_posix()
        prefix = "" if inside == "." else inside + "/"
        folders[:] = [f for f in folders if not f"{prefix}{f}/".startswith(VOLATILE_SYSCTLS)]
        for file in files:
            name = prefix + file
            if name.startswith(VOLATILE_SYSCTLS) or _OF_A_LINK.match(name):
                continue
            path = f"{folder}/{file}"
            with contextlib.suppress(OSError):
                if os.stat(path).st_mode & stat.S_IRUSR:
                    yield name, _read(path).decode(errors="replace").strip()


def _tree(root: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = f"{folder}/{name}"
            with contextlib.suppress(OSError):
                at = os.lstat(path)
                seen = f"mode={at.st_mode:o} owner={at.st_uid}:{at.st_gid}"
                if stat.S_ISREG(at.st_mode):
                    seen += f" size={at.st_size} mtime={at.st_mtime_ns}"
                    if at.st_size < 1_000_000:
                        seen += " sha256=" + hashlib.sha256(_read(path)).hexdigest()[:16]
                yield path, seen


def _litter() -> Iterator[tuple[str, str]]:
    for folder in (*LITTER_FOLDERS, str(Path.home())):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = f"{folder}/{name}"
                if path not in STANDING and not name.startswith(FOREIGN_LITTER):
                    yield path, "left behind"
    for standing in STANDING:
        for folder, _, files in os.walk(standing):
            for name in files:
                yield f"{folder}/{name}", "left behind"
