"""AutoGen's two executors of command lines. Each command is a code block, as its agents send it."""

from __future__ import annotations

import uuid
import warnings
from pathlib import Path
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor

from benchmarks.peers.bare import CODE
from benchmarks.peers.docker import IMAGE
from benchmarks.peers.worker import Loop


class _Executors:
    """Files go through the directory that the executor works in."""

    def __init__(self) -> None:
        self._loop = Loop()

    def _executor(self) -> Any:
        raise LookupError

    def create(self) -> Any:
        async def start() -> Any:
            executor = self._executor()
            await executor.start()
            return executor

        return self._loop.run(start())

    def _run(self, box: Any, code: str, language: str) -> str:
        blocks = [CodeBlock(code=code, language=language)]
        done = self._loop.run(box.execute_code_blocks(blocks, CancellationToken()))
        assert done.exit_code == 0, done.output
        return str(done.output)

    def exec_true(self, box: Any) -> None:
        self._run(box, "true", "sh")

    def destroy(self, box: Any) -> None:
        self._loop.run(box.stop())

    def oneshot(self) -> None:
        box = self.create()
        try:
            assert self._run(box, CODE, "python").strip() == "2"
        finally:
            self.destroy(box)

    def write(self, box: Any, name: str, data: bytes) -> None:
        (Path(box.work_dir) / name).write_bytes(data)

    def read(self, box: Any, name: str) -> bytes:
        return (Path(box.work_dir) / name).read_bytes()

    def close(self) -> None:
        self._loop.close()


class OnDocker(_Executors):
    def _executor(self) -> Any:
        return DockerCommandLineCodeExecutor(IMAGE, f"autogen-{uuid.uuid4().hex}")


class Local(_Executors):
    def _executor(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return LocalCommandLineCodeExecutor()
