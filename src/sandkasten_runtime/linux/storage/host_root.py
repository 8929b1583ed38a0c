"""The parts of the machine's own file system that the host image shows, as a value found once.

Only /usr (read-only) and a handful of public files of /etc; never /root, /home, /var or the rest of
/etc. The sandbox's own /etc is a skeleton directory, written once per content. It also holds the
programs of `HOST_PROGRAMS`, because their own directory would cost a mount.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.disk.atomic_file import write_file
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import (
    DEFAULT_PATH,
    HOME,
    HOST_PROGRAMS,
    RUNNER_ID,
    USER_ID,
    USER_NAME,
)
from sandkasten.model.sandbox.inspection import AUTHORITY, TRUST_DIR
from sandkasten_runtime.linux.storage import mountinfo
from sandkasten_runtime.linux.system_trust import hashed_name

if TYPE_CHECKING:
    from collections.abc import Iterable

_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Public files: library locations, certificates of authorities, alternatives, where fonts are.
_ETC_SHARED = (
    "alternatives", "fonts/conf.avail", "fonts/conf.d", "fonts/fonts.conf", "ld.so.cache",
    "mime.types", "ssl/certs", "ssl/openssl.cnf",
)  # fmt: skip
# Debian's Java does not start without its configuration, which is several levels deep.
_ETC_TREES = re.compile(r"java-.*-openjdk\Z")
# World-readable entries of a fresh /proc that describe the host. Entries that only host root may
# open need no mask. Each mask costs a mount, and bubblewrap's time grows with their square.
_PROC_FILES = (
    "cmdline", "config.gz", "interrupts", "kallsyms", "kcore", "keys", "latency_stats",
    "sched_debug", "sysrq-trigger", "timer_list",
)  # fmt: skip
_PROC_DIRS = ("acpi", "asound", "fs", "pressure", "scsi")

_FILES = {
    "passwd": (
        "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        f"{USER_NAME}:x:{USER_ID}:{USER_ID}:{USER_NAME}:{HOME}:/bin/bash\n"
        f"runner:x:{RUNNER_ID}:{RUNNER_ID}:runner:/:/usr/sbin/nologin\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "group": (
        f"root:x:0:\n{USER_NAME}:x:{USER_ID}:\nrunner:x:{RUNNER_ID}:\ntty:x:5:\nnogroup:x:65534:\n"
    ),
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
    "shells": "/bin/sh\n/bin/bash\n",
}
# Runs the host's own pip, if there is one, and explains a failure: /usr is read-only, and most
# sandboxes have no network.
_PIP = """#!/bin/sh
name=${0##*/}
for directory in /usr/local/bin /usr/bin; do
    [ -x "$directory/$name" ] || continue
    case " $* " in *" install "*|*" download "*) ;; *) exec "$directory/$name" "$@" ;; esac
    "$directory/$name" "$@" && exit 0
    break
done
package=NAME
for word in "$@"; do
    case $word in install|download|-*|[0-9]*) ;; *) package=$word ;; esac
done
cat >&2 <<END
sandkasten: packages are installed before a sandbox starts. Name them when you create it:
  sandkasten run --pip $package ...
  Sandbox(pip_packages=["$package"])
  pip_packages: [$package] in the request or in the agent file
END
exit 1
"""
RESOLVER = "198.18.0.1"
NETWORK_FILES = {
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": f"nameserver {RESOLVER}\noptions timeout:5 attempts:2\n",
}


@dataclass(frozen=True, slots=True)
class HostRoot:
    """`links` are top-level names that lead into /usr; `directories` are real ones to show."""

    links: tuple[tuple[str, str], ...]
    directories: tuple[str, ...]
    proc_files: tuple[str, ...]
    proc_dirs: tuple[str, ...]
    private: tuple[str, ...] = ()
    """Directories, usr among them, that an overlay can show: those without mounts below them."""

    def source(self, name: str, stage: str) -> str:
        """Return what a sandbox shows as `/name`: the overlay on the launcher's stage if it is
        private, so that its inodes belong to one sandbox.
        """
        return f"{stage}/{name}" if name in self.private else f"/{name}"

    @property
    def shared(self) -> tuple[str, ...]:
        return tuple(name for name in ("usr", *self.directories) if name not in self.private)


def sharing(names: Iterable[str]) -> tuple[str, ...]:
    """Return the warning of a sandbox with these shared directories."""
    shown = ", ".join(f"/{name}" for name in names)
    if not shown:
        return ()
    return (
        f"{shown} has no overlay of its own here: code inside can notice which of its files the "
        "host and other sandboxes open and lock; run sandkasten doctor",
    )


def look() -> HostRoot:
    links, directories = [], []
    for name in _TOP:
        path = f"/{name}"
        if os.path.islink(path):
            links.append((name, os.readlink(path)))
        elif os.path.isdir(path):
            directories.append(name)
    shown = ("usr", *directories)
    return HostRoot(
        links=tuple(links),
        directories=tuple(directories),
        private=tuple(name for name in shown if not _mounts_below(f"/{name}")),
        proc_files=tuple(n for n in _PROC_FILES if os.path.isfile(f"/proc/{n}")),
        proc_dirs=tuple(n for n in _PROC_DIRS if os.path.isdir(f"/proc/{n}")),
    )


def _mounts_below(path: str) -> bool:
    return any(entry.point != path for entry in mountinfo.under(path))


def root_skeleton(directory: Path, root: HostRoot) -> Path:
    """Return the symlinks of the root; mount points are created when they are mounted."""
    links = {**dict(root.links), "work": "workspace", "var/tmp": "../tmp", "var/run": "../run"}
    path = directory / hashlib.sha256(repr(sorted(links.items())).encode()).hexdigest()[:16]
    if path.is_dir():
        return path
    making = Path(tempfile.mkdtemp(dir=directory))
    making.chmod(0o755)
    (making / "var").mkdir()
    (making / "var").chmod(0o755)
    for name, target in links.items():
        (making / name).symlink_to(target)
    return _settle(making, path)


def resolver_file(directory: Path) -> Path:
    """Return the resolv.conf of a sandbox with a network, for an image that has its own /etc."""
    path = directory / "resolv.conf"
    if not path.exists():
        write_file(path, NETWORK_FILES["resolv.conf"].encode(), mode=0o644)
    return path


def etc_skeleton(directory: Path, usr: Path = Path("/usr"), *, network: bool = False) -> Path:
    """Return a directory to mount as /etc: our own files and copies of this machine's public ones.

    Copies, because one mount is cheaper than six; the name derives from their sources, so that an
    upgraded library cache or a new certificate makes a new directory.
    """
    sources = [f"/etc/{name}" for name in _ETC_SHARED if os.path.exists(f"/etc/{name}")]
    trees = [f"/etc/{name}" for name in sorted(os.listdir("/etc")) if _ETC_TREES.match(name)]
    trees = [tree for tree in trees if os.path.isdir(tree)]
    states = [(source, os.stat(source)) for source in (*sources, *trees)]
    stamps = [(source, state.st_mtime_ns, state.st_size) for source, state in states]
    zone = os.readlink("/etc/localtime") if os.path.islink("/etc/localtime") else ""
    python = _python(usr)
    files = {**_FILES, **(NETWORK_FILES if network else {})}
    authority = (hashed_name(), f"{TRUST_DIR}/{AUTHORITY}") if network else None
    text = repr((sorted(files.items()), stamps, zone, python, _PIP, authority))
    path = directory / hashlib.sha256(text.encode()).hexdigest()[:16]
    if path.is_dir():
        return path
    making = Path(tempfile.mkdtemp(dir=directory))
    making.chmod(0o755)
    for name, content in files.items():
        (making / name).write_text(content)
        (making / name).chmod(0o644)
    (making / "os-release").symlink_to("../usr/lib/os-release")
    if zone:
        (making / "localtime").symlink_to(zone)
    _add_programs(making / HOST_PROGRAMS.removeprefix("/etc/"), python)
    for source in sources:
        _copy_public(source, making / source.removeprefix("/etc/"))
    for source in trees:
        _copy_public(source, making / source.removeprefix("/etc/"), deep=True)
    if authority is not None and (making / "ssl/certs").is_dir():
        # It exists only in an inspected sandbox; elsewhere it is a dangling link.
        (making / "ssl/certs" / authority[0]).symlink_to(authority[1])
    return _settle(making, path)


@dataclass(frozen=True, slots=True)
class _Python:
    """`path` is the host's python3, or empty; `named`: it also has a program named python."""

    path: str
    named: bool


def _python(usr: Path) -> _Python:
    def find(name: str) -> str:
        for directory in DEFAULT_PATH.split(":"):
            # /bin and /sbin are /usr/bin and /usr/sbin inside, whatever they are here.
            inside = directory.removeprefix("/usr").strip("/")
            if os.access(f"{usr}/{inside}/{name}", os.X_OK):
                return f"/usr/{inside}/{name}"
        return ""

    return _Python(find("python3"), bool(find("python")))


def _add_programs(directory: Path, python: _Python) -> None:
    for path in (directory.parent, directory):
        path.mkdir()
        path.chmod(0o755)
    if not python.path:
        return
    if not python.named:
        (directory / "python").symlink_to(python.path)
    for name in ("pip", "pip3"):
        (directory / name).write_text(_PIP)
        (directory / name).chmod(0o755)


def _settle(making: Path, path: Path) -> Path:
    try:
        making.rename(path)
    except OSError:
        # Another process was faster; its directory has the same content by name.
        shutil.rmtree(making)
        if not path.is_dir():
            raise
    return path


def _copy_public(source: str, target: Path, *, deep: bool = False) -> None:
    """Copy one level, or all with `deep`; symlinks stay symlinks; files that are not
    world-readable are left out.
    """
    target.parent.mkdir(mode=0o755, exist_ok=True)
    target.parent.chmod(0o755)
    if not os.path.isdir(source):
        _copy_file(source, target)
        return
    target.mkdir(mode=0o755)
    target.chmod(0o755)
    for entry in os.scandir(source):
        if entry.is_symlink():
            (target / entry.name).symlink_to(os.readlink(entry.path))
        elif entry.is_file():
            _copy_file(entry.path, target / entry.name)
        elif deep and entry.is_dir():
            _copy_public(entry.path, target / entry.name, deep=True)


def _copy_file(source: str, target: Path) -> None:
    if os.stat(source).st_mode & stat.S_IROTH:
        shutil.copyfile(source, target)
        target.chmod(0o644)
