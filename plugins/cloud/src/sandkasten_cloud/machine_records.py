"""What this data directory knows of its machines: one file for each, with the key of its gate.

The file is written before the machine exists and removed after it, so a crash at any point leaves
something that is found again. Blocks; raises BackendUnavailable.
"""

from __future__ import annotations

import json
import secrets
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.disk.atomic_file import create_file, write_file
from sandkasten.disk.small_file import read_small_file
from sandkasten.errors import BackendUnavailable
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.ids import SandboxId, is_sandbox_id
from sandkasten_runtime.backends.gate import entry_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sandkasten_runtime.backends.gate.entry_keys import EntryKeys

_OWNER_BYTES: Final = 8
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class MachineRecord:
    keys: EntryKeys
    machine_id: str = ""
    """Empty: the provider had not answered yet."""

    def to_bytes(self) -> bytes:
        return json.dumps({"machine": self.machine_id, "keys": self.keys.to_data()}).encode()


class MachineRecords:
    """The directory of one provider; `owner` is the name of this installation there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._machines = directory / "machines"

    def owner(self) -> str:
        """Return the name that this data directory has at the provider; make one up first."""
        with _disk_errors():
            self._machines.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._directory / "owner"
            # If two processes start at once, both use what the first one wrote.
            create_file(path, secrets.token_hex(_OWNER_BYTES).encode())
            return path.read_text().strip()

    def begin(self, sandbox_id: SandboxId, keys: EntryKeys) -> bool:
        """Record a machine that is about to be made; return False if there is a record already."""
        with _disk_errors():
            return create_file(self._path(sandbox_id), MachineRecord(keys).to_bytes())

    def complete(self, sandbox_id: SandboxId, machine_id: str) -> None:
        record = self.read(sandbox_id)
        if record is not None:
            with _disk_errors():
                data = replace(record, machine_id=machine_id).to_bytes()
                write_file(self._path(sandbox_id), data, durable=False)

    def read(self, sandbox_id: SandboxId) -> MachineRecord | None:
        """Return the record; None if there is none, or one that is damaged."""
        with _disk_errors():
            data = read_small_file(self._path(sandbox_id))
        try:
            document = json.loads(data or b"")
            keys = entry_keys.from_data(document["keys"])
            return None if keys is None else MachineRecord(keys, str(document["machine"]))
        except (ValueError, KeyError, TypeError):
            return None

    def remove(self, sandbox_id: SandboxId) -> None:
        with _disk_errors(), suppress(FileNotFoundError):
            self._path(sandbox_id).unlink()

    def ids(self) -> Sequence[SandboxId]:
        with _disk_errors(), suppress(FileNotFoundError):
            names = [path.name.removesuffix(_SUFFIX) for path in self._machines.iterdir()]
            return sorted(SandboxId(name) for name in names if is_sandbox_id(name))
        return ()

    def _path(self, sandbox_id: SandboxId) -> Path:
        return self._machines / f"{sandbox_id}{_SUFFIX}"


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise BackendUnavailable(
            f"the data directory cannot be used: {exc}",
            hint="check free space and permissions, or set SANDKASTEN_DATA_DIR",
        ) from exc
