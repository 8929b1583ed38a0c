"""Run the code blocks of AutoGen agents in a sandbox."""

from __future__ import annotations

import asyncio
import posixpath
from dataclasses import dataclass
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sandkasten import AsyncSandbox
from sandkasten.integrations.framework_import import framework_import

with framework_import("AutoGen", "autogen"):
    from autogen_core import CancellationToken, Component
    from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
    from pydantic import BaseModel

if TYPE_CHECKING:
    from typing import Self

_WORKSPACE = "/workspace"
_PROGRAMS = {
    **dict.fromkeys(("python", "py", "python3"), "python3"),
    **dict.fromkeys(("shell", "sh"), "sh"),
    "bash": "bash",
}
_CANCELLED = "Code execution was cancelled."


@dataclass
class SandboxCodeResult(CodeResult):
    """The output of all blocks, and the file of the first."""

    code_file: str | None = None


class SandkastenExecutorConfig(BaseModel):
    """What `SandkastenCodeExecutor` is created with."""

    image: str | None = None
    timeout: int = 60
    work_dir: str | None = None
    delete_tmp_files: bool = False
    options: dict[str, Any] = {}


class SandkastenCodeExecutor(CodeExecutor, Component[SandkastenExecutorConfig]):
    """A code executor like AutoGen's `DockerCommandLineCodeExecutor`, on one sandbox.

    Each block is written to `/workspace` and run there by python3, bash or sh; files stay for
    the next block. `work_dir` is a directory of this machine: it is copied into the workspace at
    the start, and the workspace is copied back to it after each execution. `options` are those of
    a sandbox.
    """

    component_config_schema = SandkastenExecutorConfig
    component_provider_override = "sandkasten.integrations.autogen_executor.SandkastenCodeExecutor"
    SUPPORTED_LANGUAGES: ClassVar[list[str]] = [*_PROGRAMS]

    def __init__(
        self,
        image: str | None = None,
        *,
        timeout: int = 60,
        work_dir: str | PathLike[str] | None = None,
        delete_tmp_files: bool = False,
        **options: Any,
    ) -> None:
        if timeout < 1:
            raise ValueError("Timeout must be greater than or equal to 1.")
        self._config = SandkastenExecutorConfig(
            image=image,
            timeout=timeout,
            work_dir=None if work_dir is None else fspath(work_dir),
            delete_tmp_files=delete_tmp_files,
            options=options,
        )
        self._box: AsyncSandbox | None = None

    @property
    def timeout(self) -> int:
        """Seconds for each block."""
        return self._config.timeout

    @property
    def work_dir(self) -> Path:
        """The directory of this machine; RuntimeError if there is none."""
        if self._config.work_dir is None:
            raise RuntimeError("Working directory not properly initialized: give work_dir")
        return Path(self._config.work_dir)

    bind_dir = work_dir
    """Another name of `work_dir`, as in the Docker executor."""

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox, for its files; ValueError if the executor is not started."""
        if self._box is None:
            raise ValueError("the executor is not started; call start or use `async with`")
        return self._box

    async def start(self) -> None:
        """Create the sandbox. Quiet if there is one."""
        if self._box is None:
            self._box = await AsyncSandbox(self._config.image, **self._config.options)
            if self._config.work_dir is not None:
                self.work_dir.mkdir(parents=True, exist_ok=True)
                await self._box.upload(self.work_dir, _WORKSPACE)

    async def stop(self) -> None:
        """Destroy the sandbox. Quiet if there is none."""
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    async def restart(self) -> None:
        """Replace the sandbox: its files are gone."""
        await self.stop()
        await self.start()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> SandboxCodeResult:
        """Run the blocks one after the other, up to the first that fails."""
        if not code_blocks:
            raise ValueError("No code blocks to execute.")
        files: list[str] = []
        output, status = "", 0
        try:
            for block in code_blocks:
                work = asyncio.ensure_future(self._run(block, files))
                cancellation_token.link_future(work)
                try:
                    text, status = await work
                except asyncio.CancelledError:
                    if not cancellation_token.is_cancelled():
                        raise
                    text, status = _CANCELLED, 1
                output += text
                if status != 0:
                    break
        finally:
            if self._config.delete_tmp_files:
                for path in files:
                    await self.sandbox.remove(path, missing_ok=True)
                    if self._config.work_dir is not None:
                        await asyncio.to_thread(Path(self._shown(path)).unlink, missing_ok=True)
            if self._config.work_dir is not None:
                await self.sandbox.download(_WORKSPACE, self.work_dir)
        return SandboxCodeResult(status, output, self._shown(files[0]) if files else None)

    def _shown(self, path: str) -> str:
        """Return a block's file as the caller finds it."""
        if self._config.work_dir is None:
            return path
        return str(self.work_dir / posixpath.relpath(path, _WORKSPACE))

    async def _run(self, block: CodeBlock, files: list[str]) -> tuple[str, int]:
        language = block.language.lower()
        program = _PROGRAMS.get(language)
        if program is None:
            raise ValueError(f"Unsupported language: {block.language}")
        path = _path(block.code, language)
        if path is None:
            return "Filename is not in the workspace", 1
        await self.sandbox.write(path, block.code)
        files.append(path)
        done = await self.sandbox.exec(
            [program, path], cwd=_WORKSPACE, timeout_seconds=self._config.timeout
        )
        if done.timed_out:
            return f"{done.output}\n Timeout", 124
        return done.output, 1 if done.exit_status is None else done.exit_status

    def _to_config(self) -> SandkastenExecutorConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: SandkastenExecutorConfig) -> Self:
        known = config.model_dump()
        return cls(**known.pop("options"), **known)


def _path(code: str, language: str) -> str | None:
    """Return where a block goes; None if the name that it asks for is outside the workspace."""
    first = code.partition("\n")[0]
    if not first.startswith("# filename:"):
        return posixpath.join(_WORKSPACE, f"tmp_code_{_digest(code)}.{language}")
    path = posixpath.normpath(posixpath.join(_WORKSPACE, first.partition(":")[2].strip()))
    return path if path.startswith(f"{_WORKSPACE}/") else None


def _digest(code: str) -> str:
    return sha256(code.encode()).hexdigest()


__all__ = ["SandboxCodeResult", "SandkastenCodeExecutor", "SandkastenExecutorConfig"]
