"""The directory layout of a local backend: names, and one state file per sandbox.

templates/ seccomp/ etc/ root/ programs/ stage/     shared, made at first use
cells/<id>/       one sandbox. Its files, and the module that writes each of them:
  state           JSON; this module
  socket          the runner's listener; `launcher`
  listen/         the directory of that listener for gVisor; `backends.oci.backend`
  pid             the first process; the launcher (runner/src/launch)
  volume          the scratch disk; `storage.workspace_image`
  changes         that of a writable root, if the workspace is on another one
  egress.sock egress.json     the control socket and the rules of its network; `egress`
  egress.pid      the egress process; the launcher
  egress.0 egress.1           records of connections; the egress process (runner/src/egress)
  tls/            the certificates that programs inside trust; `trust_files`
  tls-layer/      the same, in a layer above the image; `system_trust`
  bundle/         config.json: `backends.oci.backend`; pid and state: the OCI runtime
  log             the log of an OCI runtime; the launcher opens it
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from sandkasten.disk.atomic_file import write_file
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.cell_spec import WORKSPACE

if TYPE_CHECKING:
    from pathlib import Path

_SHARED = ("cells", "templates", "seccomp", "etc", "root", "programs", "stage")


@dataclass(frozen=True, slots=True)
class CellState:
    """What is needed to end a sandbox that another process made."""

    boot_id: str
    slot: int | None
    cgroups: tuple[str, ...]
    """Directories to remove; the last resort if nothing else is known."""
    v2_directory: str | None
    unenforced: tuple[tuple[str, str, str], ...] = ()
    volume: str | None = None
    """A workspace that outlives the sandbox and must be unmounted cleanly."""
    workspace_at: str = WORKSPACE
    first_ids: tuple[tuple[str, int], ...] = ()
    """The id on a scratch disk that is 0 inside, for each copy of another sandbox's disk."""


@dataclass(frozen=True, slots=True)
class Layout:
    data_dir: Path
    family: Path | None = None
    """The directory of all local backends, if this backend's own is below another's."""

    def relatives(self) -> list[Layout]:
        """Return the layouts of all backends of one data directory, this one included: they
        share workspaces.
        """
        top = self.family or self.data_dir
        return [Layout(top), *(Layout(path.parent, top) for path in sorted(top.glob("*/cells")))]

    def prepare(self) -> None:
        """Create the shared directories with mode 0700: the sockets inside give access to every
        sandbox.
        """
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
    """Return the state; None if the sandbox was never started or the file is unreadable."""
    try:
        raw = json.loads((cell / "state").read_text())
        return CellState(
            boot_id=str(raw["boot_id"]),
            slot=raw["slot"] if isinstance(raw["slot"], int) else None,
            cgroups=tuple(str(c) for c in raw["cgroups"]),
            v2_directory=raw["v2_directory"],
            unenforced=tuple((str(a), str(b), str(c)) for a, b, c in raw["unenforced"]),
            volume=raw["volume"] if isinstance(raw.get("volume"), str) else None,
            workspace_at=str(raw.get("workspace_at", WORKSPACE)),
            first_ids=tuple((str(a), int(b)) for a, b in raw.get("first_ids", ())),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_pid(cell: Path) -> tuple[int, int] | None:
    """Return (pid, start time) of the sandbox's first process, as the launcher wrote it."""
    return read_pid_file(cell / "pid")


def read_pid_file(path: Path) -> tuple[int, int] | None:
    """Return (pid, start time) of the process that a file names; None if there is none."""
    try:
        pid, start = path.read_text().split()
        return int(pid), int(start)
    except (OSError, ValueError):
        return None
