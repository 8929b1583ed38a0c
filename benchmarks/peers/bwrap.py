"""Raw bubblewrap with a plain profile: namespaces and read-only binds, no limits, no filter."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.bare import CODE, PRINTED, PYTHON

NAME = "bwrap"


def missing() -> str:
    return "" if shutil.which("bwrap") else "bubblewrap is not installed"


def _arguments(*workspace: str) -> list[str]:
    links = [
        part
        for name in ("bin", "lib", "lib64", "sbin")
        if Path(f"/{name}").is_symlink()
        for part in ("--symlink", os.readlink(f"/{name}"), f"/{name}")
    ]
    return [
        "bwrap",
        *("--unshare-all", "--die-with-parent", "--new-session"),
        *("--ro-bind", "/usr", "/usr"),
        *links,
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
        *(workspace or ("--tmpfs", "/workspace")),
        *("--chdir", "/workspace", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"),
    ]


@dataclass(frozen=True, slots=True)
class Box:
    process: subprocess.Popen[bytes]

    @classmethod
    def create(cls) -> Box:
        """A live sandbox that has answered once."""
        process = subprocess.Popen(
            [*_arguments(), "/bin/sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return cls(process)

    def destroy(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Bwrap:
    """A contestant. A sandbox is a directory, and each command starts bubblewrap on it."""

    def create(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="bench-bwrap-"))

    def _run(self, box: Path, *words: str) -> bytes:
        arguments = _arguments("--bind", str(box), "/workspace")
        return subprocess.run([*arguments, *words], check=True, capture_output=True).stdout

    def exec_true(self, box: Path) -> None:
        self._run(box, "/bin/true")

    def destroy(self, box: Path) -> None:
        shutil.rmtree(box)

    def oneshot(self) -> None:
        box = self.create()
        try:
            assert self._run(box, PYTHON, "-c", CODE) == PRINTED
        finally:
            self.destroy(box)

    def write(self, box: Path, name: str, data: bytes) -> None:
        (box / name).write_bytes(data)

    def read(self, box: Path, name: str) -> bytes:
        return (box / name).read_bytes()
