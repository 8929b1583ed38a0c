"""Mounts of this process and of others, as the kernel lists them, and unmounting.

Blocking. Knows nothing of what is mounted or why. Raises OSError if the kernel refuses.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import Final

from sandkasten.lazy_dataclass import dataclass

_DETACH: Final = 2
_NOFOLLOW: Final = 8
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountEntry:
    point: str
    device: str
    """Device number, such as "7:3"."""
    kind: str
    tags: tuple[str, ...]
    """How mounts below it propagate: "shared:1", "master:2"; empty if they do not."""


def parse(text: bytes) -> list[MountEntry]:
    """Parse in the kernel's order: of two mounts on one point, the later covers the earlier."""
    entries = []
    for line in text.splitlines():
        left, _, right = line.partition(b" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 6 or not kind:
            continue
        point = _ESCAPED.sub(lambda octal: bytes([int(octal[1], 8)]), fields[4])
        tags = tuple(os.fsdecode(tag) for tag in fields[6:])
        entries.append(
            MountEntry(os.fsdecode(point), os.fsdecode(fields[2]), os.fsdecode(kind[0]), tags)
        )
    return entries


def own() -> list[MountEntry]:
    with open("/proc/self/mountinfo", "rb") as file:
        return parse(file.read())


def under(path: str) -> list[MountEntry]:
    """Return the mounts on `path` (a real path) and below it."""
    return [m for m in own() if m.point == path or m.point.startswith(path.rstrip("/") + "/")]


def covering(path: str) -> MountEntry | None:
    """Return the mount that `path` (a real path) is on."""
    best: MountEntry | None = None
    for mount in own():
        if (path + "/").startswith(mount.point.rstrip("/") + "/") and (
            best is None or len(mount.point) >= len(best.point)
        ):
            best = mount
    return best


def detach(point: str) -> None:
    """Unmount the top mount there, with everything below it; processes inside keep it until they
    leave.

    Only this process may be able to place a symlink on the way to `point`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(ctypes.c_char_p(os.fsencode(point)), ctypes.c_int(_DETACH | _NOFOLLOW)) != 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed), point)


def holders(device: str) -> list[int]:
    """Return one process for each mount namespace in which this device is mounted, our own
    included.
    """
    pids: list[int] = []
    seen: set[str] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            namespace = os.readlink(f"/proc/{name}/ns/mnt")
            if namespace in seen:
                continue
            with open(f"/proc/{name}/mountinfo", "rb") as file:
                mounts = parse(file.read())
        except OSError:
            continue  # gone meanwhile, or a zombie
        seen.add(namespace)
        if any(mount.device == device for mount in mounts):
            pids.append(int(name))
    return pids
