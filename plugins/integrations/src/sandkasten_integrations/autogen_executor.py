"""Run the code blocks of AutoGen agents in a sandbox."""

from __future__ import annotations

import asyncio
import posixpath
import warnings
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from sandkasten import AsyncSandbox
from sandkasten_integrations.framework_import import framework_import

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
# Where copies of `extra_volumes` arrive, before a command puts them in their places.
_ARRIVALS = "/tmp/autogen-volumes"  # noqa: S108  (a path inside the sandbox)
_INTO_PLACE = 'mkdir -p -- "$(dirname -- "$2")" && cp -RT -- "$1" "$2"'
_ADD_HOSTS = 'printf %s "$1" >> /etc/hosts'


@dataclass
class SandboxCodeResult(CodeResult):
    """The output of all blocks, and the file of the first."""

    code_file: str | None = None


class SandkastenExecutorConfig(BaseModel):
    """What `SandkastenCodeExecutor` is created with."""

    image: str | None = None
    timeout: int = 60
    work_dir: str | None = None
    extra_volumes: dict[str, dict[str, str]] = {}
    extra_hosts: dict[str, str] = {}
    init_command: str | None = None
    delete_tmp_files: bool = False
    options: dict[str, Any] = {}


class SandkastenCodeExecutor(CodeExecutor, Component[SandkastenExecutorConfig]):
    """A code executor like AutoGen's `DockerCommandLineCodeExecutor`, on one sandbox.

    Each block is written to `/workspace` and run there by python3, bash or sh; files stay for
    the next block. `work_dir` is a directory of this machine, by default a temporary one: it is
    copied into the workspace at the start, and the workspace is copied back to it after
    `init_command`, which runs at the start, and after each execution. `extra_volumes` are copied
    into the sandbox and never back. They may be outside the writable directories, and there may be
    `extra_hosts`, with profile dev and an image. `options` are those of a sandbox.
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
        extra_volumes: dict[str, dict[str, str]] | None = None,
        extra_hosts: dict[str, str] | None = None,
        init_command: str | None = None,
        delete_tmp_files: bool = False,
        **options: Any,
    ) -> None:
        if timeout < 1:
            raise ValueError("Timeout must be greater than or equal to 1.")
        if work_dir is not None and Path(work_dir).resolve() == Path.cwd().resolve():
            warnings.warn(
                "Using the current directory as work_dir is deprecated.",
                DeprecationWarning,
                stacklevel=2,
            )
        self._config = SandkastenExecutorConfig(
            image=image,
            timeout=timeout,
            work_dir=None if work_dir is None else fspath(work_dir),
            extra_volumes=extra_volumes or {},
            extra_hosts=extra_hosts or {},
            init_command=init_command,
            delete_tmp_files=delete_tmp_files,
            options=options,
        )
        self._box: AsyncSandbox | None = None
        self._temporary: TemporaryDirectory[str] | None = None

    @property
    def timeout(self) -> int:
        """Seconds for each block."""
        return self._config.timeout

    @property
    def work_dir(self) -> Path:
        """The directory of this machine; RuntimeError if it is temporary and not made yet."""
        if self._config.work_dir is not None:
            return Path(self._config.work_dir)
        if self._temporary is None:
            raise RuntimeError("Working directory not properly initialized: start the executor")
        return Path(self._temporary.name)

    bind_dir = work_dir
    """Another name of `work_dir`, as in the Docker executor."""

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox, for its files; ValueError if the executor is not started."""
        if self._box is None:
            raise ValueError("the executor is not started; call start or use `async with`")
        return self._box

    async def start(self) -> None:
        """Create the sandbox. Quiet if there is one. A start that fails leaves nothing."""
        if self._box is not None:
            return
        async with AsyncExitStack() as unless_started:
            unless_started.callback(self._remove_temporary)
            if self._config.work_dir is None:
                self._temporary = TemporaryDirectory()
            await asyncio.to_thread(self.work_dir.mkdir, parents=True, exist_ok=True)
            box = await unless_started.enter_async_context(
                AsyncSandbox(self._config.image, **self._config.options)
            )
            await box.upload(self.work_dir, _WORKSPACE)
            await self._prepare(box)
            unless_started.pop_all()
        self._box = box

    async def _prepare(self, box: AsyncSandbox) -> None:
        for number, (source, volume) in enumerate(self._config.extra_volumes.items()):
            copy = f"{_ARRIVALS}/{number}"
            await box.upload(source, copy)
            await box.exec(["sh", "-c", _INTO_PLACE, "sh", copy, volume["bind"]], check=True)
        hosts = [f"{address} {name}\n" for name, address in self._config.extra_hosts.items()]
        if hosts:
            await box.exec(["sh", "-c", _ADD_HOSTS, "sh", "".join(hosts)], check=True)
        if self._config.init_command is not None:
            await box.exec(["sh", "-c", self._config.init_command], cwd=_WORKSPACE, check=True)
            await box.download(_WORKSPACE, self.work_dir)

    async def stop(self) -> None:
        """Destroy the sandbox. Quiet if there is none."""
        box, self._box = self._box, None
        try:
            if box is not None:
                await box.close()
        finally:
            self._remove_temporary()

    def _remove_temporary(self) -> None:
        directory, self._temporary = self._temporary, None
        if directory is not None:
            directory.cleanup()

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
                    await asyncio.to_thread(Path(self._shown(path)).unlink, missing_ok=True)
            await self.sandbox.download(_WORKSPACE, self.work_dir)
        return SandboxCodeResult(status, output, self._shown(files[0]) if files else None)

    def _shown(self, path: str) -> str:
        """Return a block's file as the caller finds it."""
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
        values = config.model_dump()
        return cls(**values.pop("options"), **values)


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
