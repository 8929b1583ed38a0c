"""One range of 65,536 host ids per sandbox, leased by a file.

0x70000000 and up to 0x7FFDFFFF is left unused by distributions, by systemd's allocations and by
the usual /etc/subuid; nothing on the host is owned by these ids. A lease is a symlink that names
the sandbox, in one directory for the whole machine, so that two data directories never meet; it
lies below /run, so that none survives a restart.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_ID = 0x7000_0000
COUNT = 0x1_0000
SLOTS = 0x0FFD


HOST_DIRECTORY = Path("/run/sandkasten/ids")


def base_of(slot: int) -> int:
    return FIRST_ID + slot * COUNT


def lease(directory: Path, owner: str) -> int:
    """Return a free slot, now leased to `owner`. Raise BackendUnavailable if all are taken."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Starting at random keeps two processes from racing for the same slot every time.
    start = random.randrange(SLOTS)  # noqa: S311  (spread, not secrecy)
    for offset in range(SLOTS):
        slot = (start + offset) % SLOTS
        try:
            os.symlink(owner, directory / str(slot))
        except FileExistsError:
            continue
        return slot
    raise BackendUnavailable(
        f"all {SLOTS} id ranges of this data directory are in use",
        hint="destroy sandboxes that are no longer needed",
    )


def release(directory: Path, slot: int, owner: str) -> None:
    """Release the slot, if `owner` still has it."""
    path = directory / str(slot)
    try:
        if os.readlink(path) == owner:
            path.unlink()
    except FileNotFoundError:
        return


def slot_of(directory: Path, owner: str) -> int | None:
    return next((slot for slot, who in leases(directory) if who == owner), None)


def leases(directory: Path) -> Iterator[tuple[int, str]]:
    if not directory.is_dir():
        return
    for entry in directory.iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), os.readlink(entry)
            except OSError:
                continue
