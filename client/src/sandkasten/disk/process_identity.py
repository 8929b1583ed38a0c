"""Processes named by pid, start time and boot id, so that a reused pid is never mistaken.

Reads /proc. A zombie has ended: it only waits to be collected by its parent.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

from sandkasten.lazy_dataclass import dataclass

KILLED_HINT: Final = (
    "try again; if the error stays, look in the kernel's log for a process killed for lack of "
    "memory"
)
"""For one of our programs that was killed."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    pid: int
    start: int
    """Clock ticks since boot."""
    boot_id: str


@cache
def boot_id() -> str:
    """Return the id of this boot; empty where there is no /proc."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def this_process() -> ProcessIdentity:
    """Return our own identity. Not cached: a forked child is another process."""
    pid = os.getpid()
    return ProcessIdentity(pid, start_time(pid) or 0, boot_id())


def start_time(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # Counted from behind the name, which may contain anything.
    fields = stat[stat.rfind(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def is_gone(process: ProcessIdentity) -> bool:
    """Return True only if it is certain that the process has ended."""
    if process.boot_id != boot_id():
        return True
    start = start_time(process.pid)
    if start is None:
        return Path("/proc/self/stat").exists()
    return start != process.start
