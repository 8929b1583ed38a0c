"""The sandboxes of inspect_ai, made as a task makes them for each of its samples."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from inspect_ai.util._sandbox.docker.docker import DockerSandboxEnvironment
from inspect_ai.util._sandbox.local import LocalSandboxEnvironment
from inspect_ai.util._subprocess import init_max_subprocesses

from benchmarks.peers.bare import CODE, PYTHON
from benchmarks.peers.docker import IMAGE
from benchmarks.peers.worker import Loop

_TASK = "bench"


class _Samples:
    _class: Any
    _config: str | None = None

    def __init__(self) -> None:
        self._loop = Loop()
        self._loop.run(self._begin())

    async def _begin(self) -> None:
        init_max_subprocesses()
        await self._class.task_init(_TASK, self._config)

    def create(self) -> Any:
        return self._loop.run(self._class.sample_init(_TASK, self._config, {}))

    def _run(self, box: Any, *words: str) -> str:
        done = self._loop.run(box["default"].exec(list(words)))
        assert done.success, done
        return str(done.stdout)

    def exec_true(self, box: Any) -> None:
        self._run(box, "/bin/true")

    def destroy(self, box: Any) -> None:
        self._loop.run(self._class.sample_cleanup(_TASK, self._config, box, False))

    def oneshot(self) -> None:
        box = self.create()
        try:
            assert self._run(box, PYTHON, "-c", CODE) == "2\n"
        finally:
            self.destroy(box)

    def write(self, box: Any, name: str, data: bytes) -> None:
        self._loop.run(box["default"].write_file(name, data))

    def read(self, box: Any, name: str) -> bytes:
        data: bytes = self._loop.run(box["default"].read_file(name, text=False))
        return data

    def close(self) -> None:
        self._loop.run(self._class.task_cleanup(_TASK, self._config, True))
        self._loop.close()


class Local(_Samples):
    _class = LocalSandboxEnvironment


class OnDocker(_Samples):
    _class = DockerSandboxEnvironment

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        compose = Path(self._folder.name) / "compose.yaml"
        service = f"image: {IMAGE}, command: sleep 1000000, init: true, x-local: true"
        compose.write_text(f"services:\n  default: {{{service}}}\n")
        self._config = str(compose)
        super().__init__()

    def close(self) -> None:
        super().close()
        self._folder.cleanup()
