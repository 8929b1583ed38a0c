"""Where a backend of this machine keeps its things below its directory: names, and one state file.

cells/<id>/       socket (the runner's listener), state (JSON), pid (the launcher's), volume
templates/ seccomp/ etc/ root/ programs/ stage/     shared, made at first use
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sandkasten.disk.atomic_file import write_file
from sandkasten.model.ids import SandboxId

if TYPE_CHECKING:
    from pathlib import Path

_SHARED = ("cells", "templates", "seccomp", "etc", "root", "programs", "stage")


@dataclass(frozen=True, slots=True)
class CellState:
    """What must be known to end a sandbox that somebody else made."""

    boot_id: str
    slot: int | None
    cgroups: tuple[str, ...]
    """Directories to remove; the last resort when nothing else is known."""
    v2_directory: str | None
    unenforced: tuple[tuple[str, str, str], ...] = ()
    volume: str | None = None
    """A workspace that outlives the sandbox, and must be let go of cleanly."""


@dataclass(frozen=True, slots=True)
class Layout:
    data_dir: Path
    family: Path | None = None
    """The directory of the whole family, where this backend's own lies below another's."""

    def relatives(self) -> list[Layout]:
        """Every backend's of one data directory, this one among them: workspaces are common."""
        top = self.family or self.data_dir
        return [Layout(top), *(Layout(one.parent, top) for one in sorted(top.glob("*/cells")))]

    def prepare(self) -> None:
        """Make what is shared; 0700, because the sockets inside are the way into every sandbox."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in _SHARED:
            (self.data_dir / name).mkdir(mode=0o700, exist_ok=True)

    def shared(self, name: str) -> Path:
        return self.data_dir / name

    def cell(self, sandbox_id: SandboxId) -> Path:
        return self.data_dir / "cells" / sandbox_id

    def cells(self, prefix: str = "sbx_") -> list[SandboxId]:
        try:
            names = sorted(os.listdir(self.data_dir / "cells"))
        except FileNotFoundError:
            return []
        return [SandboxId(n) for n in names if n.startswith(prefix)]


def write_state(cell: Path, state: CellState) -> None:
    # Not durable: no sandbox outlives the machine.
    write_file(cell / "state", json.dumps(asdict(state)).encode(), durable=False)


def read_state(cell: Path) -> CellState | None:
    """None when the sandbox was never begun, or what is there cannot be read."""
    try:
        raw = json.loads((cell / "state").read_text())
        return CellState(
            boot_id=str(raw["boot_id"]),
            slot=raw["slot"] if isinstance(raw["slot"], int) else None,
            cgroups=tuple(str(c) for c in raw["cgroups"]),
            v2_directory=raw["v2_directory"],
            unenforced=tuple((str(a), str(b), str(c)) for a, b, c in raw["unenforced"]),
            volume=raw["volume"] if isinstance(raw.get("volume"), str) else None,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_pid(cell: Path) -> tuple[int, int] | None:
    """(pid, start time) of the sandbox's first process, as the launcher wrote it."""
    try:
        pid, start = (cell / "pid").read_text().split()
        return int(pid), int(start)
    except (OSError, ValueError):
        return None
