"""The static programs we ship, and bubblewrap: where they are, and a copy with an opaque name.

A sandbox can read the path its runner was bound from, so the runner is bound from a copy. Its name,
made of size and time, reveals nothing, and a package upgraded in place does not change a living
sandbox.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from sandkasten.lazy_dataclass import dataclass

_BUNDLED = Path(__file__).resolve().parents[1] / "_bin"


def find_bwrap() -> str | None:
    """Find bubblewrap on the fixed system path: programs run as root are not looked up in the
    caller's PATH.
    """
    return shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")


@dataclass(frozen=True, slots=True)
class Programs:
    runner: Path
    launcher: Path
    egress: Path = _BUNDLED / "sandkasten-egress"
    gate: Path = _BUNDLED / "sandkasten-gate"

    @classmethod
    def found(cls, runner: Path | None, launcher: Path | None) -> Programs:
        return cls(
            runner or _BUNDLED / "sandkasten-runner", launcher or _BUNDLED / "sandkasten-launch"
        )

    def missing(self) -> list[str]:
        return [p.name for p in (self.runner, self.launcher) if not os.access(p, os.X_OK)]

    def installed(self, directory: Path) -> Programs:
        """Return the programs with the runner copied below `directory`; unchanged if it is
        missing.
        """
        try:
            stat = self.runner.stat()
        except OSError:
            return self
        target = directory / f"{stat.st_size:x}{stat.st_mtime_ns:x}"
        if not target.exists():
            handle, temporary = tempfile.mkstemp(dir=directory)
            with os.fdopen(handle, "wb") as copy, self.runner.open("rb") as source:
                shutil.copyfileobj(source, copy)
            os.chmod(temporary, 0o755)  # noqa: S103  (a public program, run by the sandbox's user)
            os.rename(temporary, target)
        return Programs(target, self.launcher, self.egress, self.gate)
