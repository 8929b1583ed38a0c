"""No isolation at all: the floor every other peer stands on."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME = "bare"
PYTHON = "/usr/bin/python3"
CODE = "print(6*7)"


def exec_true() -> None:
    subprocess.run(["/bin/true"], check=True)


def oneshot() -> None:
    done = subprocess.run([PYTHON, "-c", CODE], check=True, capture_output=True)
    assert done.stdout == b"42\n"


def pipe_write(target: Path, data: bytes) -> None:
    """The bytes go through a pipe to another process, which keeps them in a file."""
    with target.open("wb") as file:
        subprocess.run(["/bin/cat"], input=data, stdout=file, check=True)


def pipe_read(source: Path) -> bytes:
    """And back. One plain read to the end: `capture_output` would take twice as long."""
    with subprocess.Popen(["/bin/cat", str(source)], stdout=subprocess.PIPE) as sending:
        assert sending.stdout is not None
        data = sending.stdout.read()
    assert sending.returncode == 0
    return data
