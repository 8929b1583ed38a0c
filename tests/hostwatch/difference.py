"""Compare two snapshots of the host and describe the differences.

Pure except for `settled`, which looks again until the host is as before or time runs out: a killed
orphan is a zombie until init reaps it.
"""

from __future__ import annotations

import os
import time
from dataclasses import fields
from typing import TYPE_CHECKING

from tests.hostwatch.snapshot import Snapshot, take
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Init was seen to take 1.8 s to reap an orphan; on a busy machine it is longer.
SETTLE = "TEST_SANDKASTEN_SETTLE_S"
SETTLE_S = float(os.environ.get(SETTLE, PATIENCE_S))
_POLL_S = 0.25

# What went away of these kinds is another run's: only what came can be left behind by this one.
_ONLY_NEW = frozenset({"processes", "netns", "files", "loops", "cgroups", "links", "mounts"})


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    lines: list[str] = []
    unwatched = {"packages"}
    if before.packages != after.packages:
        unwatched.add("etc")
    for part in (field.name for field in fields(Snapshot) if field.name not in unwatched):
        old, new = getattr(before, part), getattr(after, part)
        came, went, kept = new.keys() - old.keys(), old.keys() - new.keys(), old.keys() & new.keys()
        lines += [f"{part}: new: {key}: {new[key]}" for key in sorted(came)]
        if part in _ONLY_NEW:
            continue
        lines += [f"{part}: gone: {key}: {old[key]}" for key in sorted(went)]
        lines += [
            f"{part}: changed: {key}: {old[key]} -> {new[key]}"
            for key in sorted(kept)
            if old[key] != new[key]
        ]
    return lines


def settled(
    before: Snapshot,
    canary: Path,
    *,
    settle_s: float = SETTLE_S,
    look: Callable[[Path], Snapshot] = take,
) -> list[str]:
    """Return the lasting differences: empty as soon as there are none, else those at the end."""
    deadline = time.monotonic() + settle_s
    while True:
        lines = differences(before, look(canary))
        if not lines or time.monotonic() >= deadline:
            return lines
        time.sleep(_POLL_S)
