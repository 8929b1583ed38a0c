"""Raw runsc (gVisor) on an unpacked root file system, driven by its command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME = "runsc"
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")
_FLAGS = ("--platform", "systrap", "--ignore-cgroups", "--network", "none")


def missing() -> str:
    return "" if shutil.which("runsc") else "runsc is not installed"


@dataclass(frozen=True, slots=True)
class Runsc:
    """`folder` holds the bundle and runsc's state; nothing of it lies elsewhere."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path, rootfs: Path) -> Runsc:
        folder.mkdir(parents=True)
        process = {
            "user": {"uid": 0, "gid": 0},
            "args": ["/bin/sleep", "1000000"],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
        }
        config = {
            "ociVersion": "1.0.2",
            "process": process,
            "root": {"path": str(rootfs), "readonly": True},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": [{"type": t} for t in _NAMESPACES]},
        }
        (folder / "config.json").write_text(json.dumps(config))
        return cls(folder)

    def _runsc(self, *arguments: str) -> None:
        subprocess.run(
            ["runsc", "--root", str(self.folder / "state"), *_FLAGS, *arguments],
            cwd=self.folder,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def create(self) -> str:
        name = "bench-" + uuid.uuid4().hex[:12]
        self._runsc("run", "--detach", name)
        return name

    def exec_true(self, name: str) -> None:
        self._runsc("exec", name, "/bin/true")

    def destroy(self, name: str) -> None:
        self._runsc("delete", "--force", name)
