"""llm-sandbox on Docker and on bubblewrap, without the environment that it would install first."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import docker
from llm_sandbox import SandboxBackend, SandboxSession

from benchmarks.peers.bare import CODE
from benchmarks.peers.docker import IMAGE


class _Sessions:
    """Files are copied from and to files of the host: it has no other way."""

    _inside = "/sandbox"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()

    def _session(self) -> Any:
        raise LookupError

    def create(self) -> Any:
        session = self._session()
        session.open()
        return session

    def exec_true(self, box: Any) -> None:
        done = box.execute_command("/bin/true")
        assert done.exit_code == 0, done

    def destroy(self, box: Any) -> None:
        box.close()

    def oneshot(self) -> None:
        box = self.create()
        try:
            done = box.run(CODE)
            assert done.stdout.strip() == "2", done
        finally:
            self.destroy(box)

    def write(self, box: Any, name: str, data: bytes) -> None:
        source = Path(self._folder.name) / name
        source.write_bytes(data)
        box.copy_to_runtime(str(source), f"{self._inside}/{name}")

    def read(self, box: Any, name: str) -> bytes:
        target = Path(self._folder.name) / f"{name}.back"
        box.copy_from_runtime(f"{self._inside}/{name}", str(target))
        return target.read_bytes()

    def close(self) -> None:
        self._folder.cleanup()


class OnDocker(_Sessions):
    def __init__(self) -> None:
        super().__init__()
        self._client = docker.DockerClient(base_url=os.environ["DOCKER_HOST"], timeout=60)

    def _session(self) -> Any:
        return SandboxSession(
            backend=SandboxBackend.DOCKER,
            client=self._client,
            lang="python",
            image=IMAGE,
            keep_template=True,
            skip_environment_setup=True,
        )


class OnBubblewrap(_Sessions):
    def _session(self) -> Any:
        return SandboxSession(
            backend=SandboxBackend.BUBBLEWRAP, lang="python", skip_environment_setup=True
        )
