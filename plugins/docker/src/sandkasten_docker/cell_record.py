"""Records of sandboxes on our own disk, so that everything is found after a crash.

`<data_dir>/docker/owner` names the owner of our resources in an engine; `records/<id>.json` is
written before anything is made for the id and removed after everything is gone. Blocking, small
files.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sandkasten.disk.atomic_file import create_file, write_file
from sandkasten.disk.os_errors import disk_error
from sandkasten.errors import BackendUnavailable, Conflict
from sandkasten.lazy_dataclass import dataclass
from sandkasten_docker import resource_names
from sandkasten_docker.session_volumes import SessionVolumes

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.model.ids import SandboxId

_OWNER_BYTES = 8
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class CellRecord:
    place: SessionVolumes
    unenforced: tuple[tuple[str, str, str], ...] = ()
    image_volumes: int = 0
    """Number of volumes that the image declares; they have their own names."""
    beside: bool = False
    """Whether its network is made by containers beside it."""
    inspected: bool = False
    """Whether it was created with secrets or inspection."""


@dataclass(frozen=True, slots=True)
class DockerDirectory:
    """The backend's own directory."""

    root: Path

    @property
    def records(self) -> Path:
        return self.root / "records"

    @property
    def cells(self) -> Path:
        """Directory of the sessions' files in mode `bind`."""
        return self.root / "cells"

    def network(self, sandbox_id: SandboxId) -> Path:
        """Return the directory of a sandbox's egress process, which only some have."""
        return self.root / "networks" / sandbox_id

    def prepare(self) -> str:
        """Create what is missing and return the owner's name."""
        try:
            for directory in (self.root, self.records, self.cells, self.root / "templates"):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._owner()
        except OSError as exc:
            raise BackendUnavailable(
                f"the data directory cannot be used: {exc}",
                hint="check free space and permissions, or set SANDKASTEN_DATA_DIR",
            ) from exc

    def _owner(self) -> str:
        path = self.root / "owner"
        try:
            text = path.read_text().strip()
        except FileNotFoundError:
            text = ""
        if text:
            return text
        owner = secrets.token_hex(_OWNER_BYTES).encode()
        # If two processes start at once, both use what the first one wrote.
        if not create_file(path, owner) and not path.read_text().strip():
            write_file(path, owner)
        return path.read_text().strip()

    def mark(self, name: str, text: str) -> None:
        """Write a verdict to a file named `<what>-<all it depends on>…` and remove older ones
        of its kind.
        """
        kind, key = name.split("-")[:2]
        for old in self.root.glob(f"{kind}-*"):
            if old.name.split("-")[1] != key:
                old.unlink(missing_ok=True)
        write_file(self.root / name, text.encode(), durable=False)

    def begin(self, sandbox_id: SandboxId, record: CellRecord) -> None:
        """Write the record. Raise Conflict if there is one already."""
        making = self.records / f".{sandbox_id}{_SUFFIX}"
        try:
            making.write_text(json.dumps(asdict(record)))
            os.link(making, self.records / f"{sandbox_id}{_SUFFIX}")
        except FileExistsError as exc:
            raise Conflict(f"sandbox {sandbox_id} exists already") from exc
        except OSError as exc:
            with suppress(OSError):
                making.unlink()
            raise disk_error(f"record sandbox {sandbox_id}", exc, BackendUnavailable) from exc
        making.unlink()

    def read(self, sandbox_id: SandboxId) -> CellRecord | None:
        """Return the record; None if it is missing or unreadable."""
        try:
            raw: dict[str, Any] = json.loads((self.records / f"{sandbox_id}{_SUFFIX}").read_text())
            return CellRecord(
                place=SessionVolumes(**raw["place"]),
                unenforced=tuple((str(a), str(b), str(c)) for a, b, c in raw["unenforced"]),
                image_volumes=int(raw["image_volumes"]),
                beside=bool(raw.get("beside", False)),
                inspected=bool(raw.get("inspected", False)),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def end(self, sandbox_id: SandboxId) -> None:
        (self.records / f".{sandbox_id}{_SUFFIX}").unlink(missing_ok=True)
        (self.records / f"{sandbox_id}{_SUFFIX}").unlink(missing_ok=True)

    def ids(self) -> list[SandboxId]:
        """Return all ids, including those whose record was being written at a crash."""
        try:
            names = os.listdir(self.records)
        except FileNotFoundError:
            return []
        bare = {name.removesuffix(_SUFFIX).lstrip(".") for name in names if name.endswith(_SUFFIX)}
        return [
            sandbox_id
            for sandbox_id in map(resource_names.id_in, sorted(bare))
            if sandbox_id is not None
        ]
