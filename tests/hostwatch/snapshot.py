"""The state of the host as plain sets and mappings that can be compared.

Only what carries a mark of ours is in it, because other programs use the machine too: our names and
paths, the ids of sandboxes, and the marker in the environment of the test run. Settings of the
kernel, the firewall and /etc are in it as a whole; /etc is not compared if packages were installed
or removed in between, which changes it. It only reads. Objects that vanish while they
are read are left out.
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

from sandkasten_runtime.linux.confinement.id_ranges import FIRST_ID
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# What a test or the product creates outside its own folders has a name that begins with one of
# these: /var/tmp/skc-1a2b, /run/sandkasten, the link sk1a2b3c4d.
_OUR_NAME = re.compile(r"\.?(sandkasten|sk[a-z0-9]*-)|sk[0-9a-f]{8}\Z")
_OUR_PATH = re.compile(r"/(\.?sandkasten|sk[a-z0-9]*-|pytest-of-)")
_OUR_ARGUMENT = re.compile(r"/(run|tmp|lib)/(sandkasten|sk[a-z0-9]*-|pytest-of-)")
# Cgroups of ours, and of the container engines that tests start.
_OUR_CGROUP = re.compile(r"/(sandkasten|sk|docker|kube|containerd|runsc|buildkit|dagger)")

MARKER = "TEST_SANDKASTEN_RUN"
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

# Where leftovers of a run would lie. Only names of ours directly below are looked at.
LITTER_FOLDERS = ("/tmp", "/var/tmp", "/run", "/dev/shm", "/var/lib")
# Folders of our own that may be there for good; what lies in them may not.
STANDING = ("/run/sandkasten", "/var/lib/sandkasten")
# Written whenever a package is installed, configured or removed.
PACKAGE_DATABASES = ("/var/lib/dpkg/status", "/var/lib/rpm/rpmdb.sqlite")


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
    etc: Mapping[str, str]
    packages: Mapping[str, str]
    """When the package manager last changed what is installed. Not a difference by itself."""


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
        canary=dict(_tree(canary)),
        files=dict(_litter()),
        etc=dict(_tree(Path("/etc"))),
        packages=dict(_package_databases()),
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
    """Yield our processes; a zombie counts until it is reaped."""
    for pid in _our_pids():
        with contextlib.suppress(OSError):
            head, _, tail = _read(f"/proc/{pid}/stat").rpartition(b")")
            name = head.partition(b"(")[2].decode(errors="replace")
            fields = tail.split()
            state, started = fields[0].decode(), fields[19].decode()
            uid = os.stat(f"/proc/{pid}").st_uid
            how = "a zombie" if state == "Z" else "alive"
            yield f"{pid}@{started}", f"{name}, uid {uid}, {how}"


def _our_pids() -> Iterator[int]:
    marker = f"{MARKER}={os.environ.get(MARKER, '')}".encode()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if _is_ours(pid) or _is_marked(pid, marker):
                yield pid


def _is_ours(pid: int) -> bool:
    """Return whether a process is ours by its name, its arguments, its user or its cgroup."""
    name = _read(f"/proc/{pid}/comm").decode(errors="replace")
    arguments = _read(f"/proc/{pid}/cmdline").decode(errors="replace")
    return (
        name.startswith(("sandkasten", "bwrap"))
        or _OUR_ARGUMENT.search(arguments) is not None
        or os.stat(f"/proc/{pid}").st_uid >= FIRST_ID
        or b"sandkasten" in _read(f"/proc/{pid}/cgroup")
    )


def _is_marked(pid: int, marker: bytes) -> bool:
    if marker.endswith(b"=") or pid == os.getpid():
        return False
    # Zombies and other users' processes have no environment to read.
    with contextlib.suppress(OSError):
        return marker in _read(f"/proc/{pid}/environ").split(b"\0")
    return False


def _mounts() -> dict[str, str]:
    seen: Counter[str] = Counter()
    what: dict[str, str] = {}
    for line in _read("/proc/self/mountinfo").decode(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        point, options = left.split()[4:6]
        kind, source = right.split()[:2]
        if _OUR_PATH.search(f"{line.split()[3]} {point} {source} {right}"):
            seen[point] += 1
            what[f"{point}#{seen[point]}"] = f"{kind} from {source} ({options})"
    return what


def _loops() -> Iterator[tuple[str, str]]:
    for device in Path("/sys/block").glob("loop*"):
        with contextlib.suppress(OSError):
            file = (device / "loop" / "backing_file").read_text().strip()
            if _OUR_PATH.search(file):
                yield device.name, file


def _cgroups() -> Iterator[tuple[str, str]]:
    for line in _read("/proc/self/mountinfo").decode(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] in ("cgroup", "cgroup2"):
            root = left.split()[4]
            for folder, _, _ in os.walk(root):
                # The empty parent of all sandboxes may stay, as a slice of systemd's does.
                path = folder.removeprefix(root)
                if _OUR_CGROUP.search(path) and path != "/sandkasten":
                    yield folder, "cgroup"


def _network_namespaces() -> Iterator[tuple[str, str]]:
    for folder in ("/run/netns", "/var/run/netns"):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith("sk"):
                    yield f"{folder}/{name}", "named"
    for pid in _our_pids():
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/ns/net"), "in use"


def _links() -> Iterator[tuple[str, str]]:
    for link in Path("/sys/class/net").iterdir():
        if _OUR_NAME.match(link.name):
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


def _package_databases() -> Iterator[tuple[str, str]]:
    for path in PACKAGE_DATABASES:
        with contextlib.suppress(OSError):
            yield path, str(os.stat(path).st_mtime_ns)


def _litter() -> Iterator[tuple[str, str]]:
    for folder in (*LITTER_FOLDERS, str(Path.home())):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = f"{folder}/{name}"
                if path not in STANDING and _OUR_NAME.match(name):
                    yield path, "left behind"
    for standing in STANDING:
        for folder, _, files in os.walk(standing):
            for name in files:
                yield f"{folder}/{name}", "left behind"
