"""Raw runc on an unpacked root file system, driven by its command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.bare import CODE, PRINTED, PYTHON

NAME = "runc"


def missing() -> str:
    return "" if shutil.which("runc") else "runc is not installed"


@dataclass(frozen=True, slots=True)
class Runc:
    """`folder` holds the bundle and runc's state; nothing of it lies elsewhere but cgroups."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path, rootfs: Path) -> Runc:
        for bundle, args in (
            ("live", ["/bin/sleep", "1000000"]),
            ("oneshot", [PYTHON, "-c", CODE]),
        ):
            where = folder / bundle
            where.mkdir(parents=True)
            subprocess.run(["runc", "spec"], cwd=where, check=True)
            config = json.loads((where / "config.json").read_text())
            config["root"] = {"path": str(rootfs), "readonly": True}
            config["process"]["terminal"] = False
            config["process"]["args"] = args
            # Hard limits above the caller's own need a capability that not every root has.
            config["process"].pop("rlimits", None)
            (where / "config.json").write_text(json.dumps(config))
        return cls(folder)

    def _runc(self, *arguments: str) -> bytes:
        return subprocess.run(
            ["runc", "--root", str(self.folder / "state"), *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        ).stdout

    def create(self) -> str:
        name = "bench-" + uuid.uuid4().hex[:12]
        # A detached container keeps the caller's output open: it must not be a pipe of ours.
        subprocess.run(
            ["runc", "--root", str(self.folder / "state"), "run", "--detach", name],
            cwd=self.folder / "live",
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return name

    def exec_true(self, name: str) -> None:
        self._runc("exec", name, "/bin/true")

    def destroy(self, name: str) -> None:
        self._runc("delete", "--force", name)

    def oneshot(self) -> None:
        name = "bench-" + uuid.uuid4().hex[:12]
        bundle = str(self.folder / "oneshot")
        assert self._runc("run", "--bundle", bundle, name) == PRINTED

    def clean(self) -> None:
        for name in self._runc("list", "--quiet").decode().split():
            self.destroy(name)


class RuncPeer(Runc):
    """A contestant, on what `prepare` made in the folder that BENCH_RUNC names."""

    def __init__(self) -> None:
        super().__init__(Path(os.environ["BENCH_RUNC"]))
