"""Who made a sandbox, told apart from whoever gets the same pid later.

A pid alone names nobody for long: with its start time and the boot it belongs to, it names
one process for good. Reads /proc; where there is none, every owner counts as alive.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandkasten.model.sandbox.ledger_record import Record


@dataclass(frozen=True, slots=True)
class Owner:
    pid: int
    start: int
    boot_id: str


@cache
def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def this_process() -> Owner:
    """Not cached: a forked child is another owner."""
    pid = os.getpid()
    return Owner(pid, _start_time(pid) or 0, boot_id())


def owner_gone(record: Record) -> bool:
    """True only when it is certain that nobody who began this is still at it."""
    if record.boot_id != boot_id():
        return True
    start = _start_time(record.owner_pid)
    if start is None:
        return Path("/proc/self/stat").exists()
    return start != record.owner_start


def _start_time(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat, counted from behind the name, which may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    # A zombie has ended; it only waits to be noticed.
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])
