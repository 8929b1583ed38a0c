"""Freeze and thaw a whole control group, and reclaim its memory.

Uses the v1 freezer where it is mounted (a few tenths of a millisecond), else v2's `cgroup.freeze`.
The choice of files is a pure mapping; effects block and raise OSError, or TimeoutError if a process
does not stop. Knows nothing of sandboxes: `name` is one path component below `parent`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.linux.cgroup.cgroups import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandkasten_runtime.linux.cgroup.cgroups import Hierarchies

# A process stops when it next returns from the kernel; one that waits for a dead disk never does,
# and one that waits for a busy disk may take many seconds.
FREEZE_DEADLINE_S = 30.0
_PAUSE_S = 0.0002
# The v1 freezer misses a process in the middle of `vfork`, such as a Python that starts another
# program; writing the state again stops that one too.
_AGAIN_S = 0.005
_V1_STATE, _V1_STOP, _V1_GO = "freezer.state", "FROZEN", "THAWED"


@dataclass(frozen=True, slots=True)
class Freezer:
    """One way to freeze a group: what to write where, and the line that reports success."""

    directory: str
    file: str
    stop: str
    go: str
    state_file: str
    stopped: str


@dataclass(frozen=True, slots=True)
class Reclaimer:
    """One way to reclaim memory: `amount` is written; None means all of it."""

    directory: str
    file: str
    usage_file: str
    amount: str | None


def freezers(on: Hierarchies, name: str, *, parent: str = GROUP) -> tuple[Freezer, ...]:
    """Return every way this layout supports, best first. Pure."""
    ways = []
    if "freezer" in on.v1:
        ways.append(
            Freezer(
                f"{on.v1['freezer']}/{parent}/{name}",
                file=_V1_STATE,
                stop=_V1_STOP,
                go=_V1_GO,
                state_file=_V1_STATE,
                stopped=_V1_STOP,
            )
        )
    if on.v2 is not None:
        ways.append(
            Freezer(
                f"{on.v2}/{parent}/{name}",
                file="cgroup.freeze",
                stop="1",
                go="0",
                state_file="cgroup.events",
                stopped="frozen 1",
            )
        )
    return tuple(ways)


def reclaimer(on: Hierarchies, name: str, *, parent: str = GROUP) -> Reclaimer | None:
    """Return how this layout reclaims memory; None if memory is not counted. Pure."""
    if "memory" in on.v1:
        # Page cache and other pages that are backed by disk; without swap nothing else can go.
        return Reclaimer(
            f"{on.v1['memory']}/{parent}/{name}",
            file="memory.force_empty",
            usage_file="memory.usage_in_bytes",
            amount="0",
        )
    if on.v2 is not None and "memory" in on.v2_controllers:
        return Reclaimer(
            f"{on.v2}/{parent}/{name}",
            file="memory.reclaim",
            usage_file="memory.current",
            amount=None,
        )
    return None


def usable(ways: tuple[Freezer, ...]) -> Freezer | None:
    """Return the first way whose group exists: an older group may only have v2's."""
    for way in ways:
        if os.path.exists(f"{way.directory}/{way.file}"):
            return way
    return None


def frozen(way: Freezer) -> bool:
    return way.stopped in Path(way.directory, way.state_file).read_text().splitlines()


def freeze(way: Freezer, *, deadline_s: float = FREEZE_DEADLINE_S) -> None:
    """Freeze the group; nothing of it runs when this returns. After a TimeoutError all of it
    runs again.
    """
    _write(way, way.stop)
    requested_at = time.monotonic()
    deadline = requested_at + deadline_s
    while not frozen(way):
        now = time.monotonic()
        if now > deadline:
            _write(way, way.go)
            raise TimeoutError
        if now > requested_at + _AGAIN_S:
            _write(way, way.stop)
            requested_at = now
        time.sleep(_PAUSE_S)


def thaw(way: Freezer) -> None:
    _write(way, way.go)


def thaw_dying(directories: Iterable[str]) -> None:
    """Let a killed group die: the v1 freezer, unlike v2's, also holds killed processes.

    Takes directories instead of a way: the process that ends a group may see other mounts than the
    one that made it.
    """
    for directory in directories:
        with contextlib.suppress(OSError):
            _put(f"{directory}/{_V1_STATE}", _V1_GO)


def reclaim(way: Reclaimer) -> int:
    """Return the bytes the host got back, by the group's own counter."""
    before = _used(way)
    amount = way.amount if way.amount is not None else str(before)
    try:
        _put(f"{way.directory}/{way.file}", amount)
    except OSError as exc:
        # Usually less than all can be reclaimed; the counter shows how much.
        if exc.errno not in (errno.EAGAIN, errno.EINTR):
            raise
    return max(0, before - _used(way))


def _used(way: Reclaimer) -> int:
    return int(Path(way.directory, way.usage_file).read_text())


def _write(way: Freezer, value: str) -> None:
    _put(f"{way.directory}/{way.file}", value)


def _put(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
