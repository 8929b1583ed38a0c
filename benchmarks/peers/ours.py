"""Sandkasten with its default image, profile and limits: exactly what a user gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.bare import CODE, PRINTED
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


def write(box: Sandbox, name: str, data: bytes) -> None:
    box.write(f"/workspace/{name}", data)


def read(box: Sandbox, name: str) -> bytes:
    return box.read(f"/workspace/{name}")


def counted_memory(box: Sandbox) -> int | None:
    return box.stats().usage.memory_bytes


class Embedded:
    """A contestant: the engine in this process, on the data directory of its environment."""

    def create(self) -> Sandbox:
        return Sandbox()

    def exec_true(self, box: Sandbox) -> None:
        exec_argv(box)

    def destroy(self, box: Sandbox) -> None:
        box.close()

    def oneshot(self) -> None:
        """A sandbox of its own for one piece of code, gone afterwards."""
        assert run(CODE).stdout == PRINTED.decode()

    def write(self, box: Sandbox, name: str, data: bytes) -> None:
        write(box, name, data)

    def read(self, box: Sandbox, name: str) -> bytes:
        return read(box, name)


class OverHttp(Embedded):
    """A contestant: the same calls to the daemon that BENCH_URL names."""

    def __init__(self) -> None:
        self._url = os.environ["BENCH_URL"]

    def create(self) -> Sandbox:
        return Sandbox(url=self._url)

    def oneshot(self) -> None:
        assert run(CODE, url=self._url).stdout == PRINTED.decode()


class CommandLine:
    """A contestant that has one-shots alone: a process of the command line for each."""

    _options: tuple[str, ...] = ("--embedded",)

    def oneshot(self) -> None:
        done = subprocess.run(
            [str(_COMMAND), *self._options, "run", "-c", CODE], check=True, capture_output=True
        )
        assert done.stdout == PRINTED


class CommandLineOfDaemon(CommandLine):
    """It finds the daemon as a user's does: by the socket in the data directory."""

    _options = ()
