"""Sandkasten, embedded, with its default image, profile and limits: exactly what a user gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.bare import CODE
from sandkasten import Sandbox, run

if TYPE_CHECKING:
    from sandkasten import Result

_COMMAND = Path(sys.executable).with_name("sandkasten")


def create() -> Sandbox:
    return Sandbox()


def _ended_well(result: Result) -> None:
    assert result.exit_code == 0, result


def exec_shell(box: Sandbox) -> None:
    _ended_well(box.exec("true"))


def exec_argv(box: Sandbox) -> None:
    _ended_well(box.exec(["/bin/true"]))


def destroy(box: Sandbox) -> None:
    box.close()


def oneshot() -> None:
    """A sandbox of its own for one piece of code, gone afterwards."""
    assert run(CODE).stdout == "42\n"


def oneshot_cli() -> None:
    done = subprocess.run(
        [str(_COMMAND), "run", "-c", CODE], check=True, capture_output=True, env=os.environ
    )
    assert done.stdout == b"42\n"


def write(box: Sandbox, name: str, data: bytes) -> None:
    box.write(f"/workspace/{name}", data)


def read(box: Sandbox, name: str) -> bytes:
    return box.read(f"/workspace/{name}")


def counted_memory(box: Sandbox) -> int | None:
    return box.stats().usage.memory_bytes
