"""What of the machine's own file system the host image shows, found once and then a value.

Only /usr (read-only) and a handful of public files of /etc; never /root, /home, /var or the rest
of /etc. The sandbox's own /etc is a skeleton directory, written once per content.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sandkasten.model.spec import HOME, RUNNER_ID, USER_ID, USER_NAME

_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Public by nature: libraries' locations, certificates of authorities, which editor is vi.
_ETC_SHARED = (
    "alternatives",
    "ld.so.cache",
    "localtime",
    "mime.types",
    "ssl/certs",
    "ssl/openssl.cnf",
)
# Entries of a fresh /proc that tell of the host or reach into it.
_PROC_FILES = (
    "config.gz", "cmdline", "interrupts", "kallsyms", "kcore", "key-users", "keys", "kmsg",
    "kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "partitions", "diskstats",
    "sched_debug", "schedstat", "slabinfo", "softirqs", "swaps", "sysrq-trigger", "timer_list",
    "timer_stats", "vmallocinfo", "modules", "iomem", "ioports", "mtrr",
)  # fmt: skip
_PROC_DIRS = ("acpi", "asound", "bus", "driver", "fs", "irq", "scsi", "tty", "pressure")

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


@dataclass(frozen=True, slots=True)
class HostRoot:
    """`links` are top-level names that lead into /usr; `directories` are real ones to show."""

    links: tuple[tuple[str, str], ...]
    directories: tuple[str, ...]
    etc_shared: tuple[str, ...]
    proc_files: tuple[str, ...]
    proc_dirs: tuple[str, ...]


def look() -> HostRoot:
    links, directories = [], []
    for name in _TOP:
        path = f"/{name}"
        if os.path.islink(path):
            links.append((name, os.readlink(path)))
        elif os.path.isdir(path):
            directories.append(name)
    return HostRoot(
        links=tuple(links),
        directories=tuple(directories),
        etc_shared=tuple(n for n in _ETC_SHARED if os.path.exists(f"/etc/{n}")),
        proc_files=tuple(n for n in _PROC_FILES if os.path.isfile(f"/proc/{n}")),
        proc_dirs=tuple(n for n in _PROC_DIRS if os.path.isdir(f"/proc/{n}")),
    )


def etc_skeleton(directory: Path, root: HostRoot) -> Path:
    """A directory to show as /etc: our own files, and empty places for what is shared."""
    text = repr((sorted(_FILES.items()), root.etc_shared))
    path = directory / hashlib.sha256(text.encode()).hexdigest()[:16]
    if path.is_dir():
        return path
    making = Path(tempfile.mkdtemp(dir=directory))
    making.chmod(0o755)
    for name, content in _FILES.items():
        _file(making / name, content)
    (making / "os-release").symlink_to("../usr/lib/os-release")
    for name in root.etc_shared:
        place = making / name
        if place.parent != making:
            place.parent.mkdir(mode=0o755, exist_ok=True)
            place.parent.chmod(0o755)
        if os.path.isdir(f"/etc/{name}"):
            place.mkdir(mode=0o755)
            place.chmod(0o755)
        else:
            _file(place, "")
    try:
        making.rename(path)
    except OSError:
        # Another process was first; its directory has the same content by name.
        if not path.is_dir():
            raise
    return path


def _file(path: Path, content: str) -> None:
    path.write_text(content)
    path.chmod(0o644)
