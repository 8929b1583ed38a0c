"""An engine for building images, and the `docker` program, as an operator uses both.

Its data is in memory: an image is ten thousand small files, which take a disk a minute to remove.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.engines import engine
from tests.hostwatch import loopwatch
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Docker:
    """The programs of an operator, with an engine as their DOCKER_HOST."""

    socket: Path

    def docker(
        self, *words: str, check: bool = True, timeout_s: float = 110
    ) -> subprocess.CompletedProcess[str]:
        return self.run("docker", *words, check=check, timeout_s=timeout_s)

    @loopwatch.of_the_test
    def run(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_s: float = 110,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words,
            env={**os.environ, "DOCKER_HOST": f"unix://{self.socket}", **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"{words}:\n{done.stdout}{done.stderr}"
        return done


class InMemory(engine.Engine):
    """An engine whose images are in memory."""

    def start(self) -> None:
        data = self.machine.inside / "data"
        words = ["sh", "-c", 'mkdir "$1" && mount -t tmpfs -o size=8g data "$1"', "sh", str(data)]
        mounting = self.machine.start(words, self.folder / "mount.log")
        assert mounting.wait(timeout=PATIENCE_S) == 0, (self.folder / "mount.log").read_text()
        super().start()


@contextmanager
def started() -> Iterator[Docker]:
    """Start an engine with docker's own networks, which the compose files use."""
    with InMemory(bridge=True) as running:
        yield Docker(running.socket)
