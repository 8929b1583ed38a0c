"""SWE-ReX's deployments. On Docker, its server comes into the container by a read-only mount."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from swerex.deployment.docker import DockerDeployment
from swerex.deployment.local import LocalDeployment
from swerex.runtime.abstract import Command, ReadFileRequest, WriteFileRequest

from benchmarks.peers.bare import CODE, PYTHON
from benchmarks.peers.docker import IMAGE
from benchmarks.peers.worker import Loop


class _Deployments:
    """Files travel as strings: it has no other form."""

    def __init__(self) -> None:
        self._loop = Loop()
        self._folder = tempfile.TemporaryDirectory()

    def _deployment(self) -> Any:
        raise LookupError

    def _path(self, name: str) -> str:
        return f"{self._folder.name}/{name}"

    def create(self) -> Any:
        async def start() -> Any:
            deployment = self._deployment()
            await deployment.start()
            return deployment

        return self._loop.run(start())

    def _run(self, box: Any, *words: str) -> str:
        done = self._loop.run(box.runtime.execute(Command(command=list(words))))
        assert done.exit_code == 0, done
        return str(done.stdout)

    def exec_true(self, box: Any) -> None:
        self._run(box, "/bin/true")

    def destroy(self, box: Any) -> None:
        self._loop.run(box.stop())

    def oneshot(self) -> None:
        box = self.create()
        try:
            assert self._run(box, PYTHON, "-c", CODE) == "2\n"
        finally:
            self.destroy(box)

    def write(self, box: Any, name: str, data: bytes) -> None:
        wanted = WriteFileRequest(path=self._path(name), content=data.decode())
        self._loop.run(box.runtime.write_file(wanted))

    def read(self, box: Any, name: str) -> bytes:
        wanted = ReadFileRequest(path=self._path(name))
        content: str = self._loop.run(box.runtime.read_file(wanted)).content
        return content.encode()

    def close(self) -> None:
        self._folder.cleanup()
        self._loop.close()


class OnDocker(_Deployments):
    def _path(self, name: str) -> str:
        return f"/tmp/{name}"

    def _deployment(self) -> Any:
        home = Path(sys.prefix)
        return DockerDeployment(
            image=IMAGE,
            pull="never",
            startup_timeout=60,
            docker_args=[
                *("-v", f"{home}:{home}:ro"),
                *("-e", f"PATH={home}/bin:/usr/bin:/bin"),
            ],
        )


class Local(_Deployments):
    def _deployment(self) -> Any:
        return LocalDeployment()
