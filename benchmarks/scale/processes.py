"""Memory and processor time of processes, from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_HZ: Final = os.sysconf("SC_CLK_TCK")
# User and system time, and those of children that have ended.
_FIRST, _LAST = 11, 15


def processor_s(*pids: int, children: bool = False) -> float:
    """Return the seconds that these processes have used until now, with `children` also those of
    their children that have ended.
    """
    ticks = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[_FIRST : _LAST if children else _LAST - 2]))
    return ticks / _HZ


def memory_mib(pid: int) -> float:
    """Return what a process has for itself alone."""
    private = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.startswith("Private_"):
            private += int(rest.split()[0])
    return private / 1024


def family(pid: int) -> list[int]:
    """Return a process and its children, as PostgreSQL has one for each connection."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]
