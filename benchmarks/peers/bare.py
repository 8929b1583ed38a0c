"""No isolation at all: the floor every other peer stands on."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

NAME = "bare"
PYTHON = "/usr/bin/python3"
CODE = "print(1+1)"
PRINTED = b"2\n"


class Bare:
    """It has no sandbox to create: its commands and files are those of the machine."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()

    def exec_true(self, _: None) -> None:
        subprocess.run(["/bin/true"], check=True, capture_output=True)

    def oneshot(self) -> None:
        done = subprocess.run([PYTHON, "-c", CODE], check=True, capture_output=True)
        assert done.stdout == PRINTED

    def write(self, _: None, name: str, data: bytes) -> None:
        (Path(self._folder.name) / name).write_bytes(data)

    def read(self, _: None, name: str) -> bytes:
        return (Path(self._folder.name) / name).read_bytes()

    def close(self) -> None:
        self._folder.cleanup()
