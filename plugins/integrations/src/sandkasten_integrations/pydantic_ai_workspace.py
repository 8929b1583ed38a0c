"""Sandboxes as workspaces of Pydantic AI: `Agent(…, capabilities=[SandkastenWorkspace()])`."""

from __future__ import annotations

import asyncio
import math
import posixpath
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sandkasten import (
    AsyncSandbox,
    Cancelled,
    CommandNotExecutable,
    CommandNotFound,
    ExecNotFound,
    FileError,
    FileNotFound,
    NotADirectory,
    PolicyDenied,
    SandboxLost,
    SandkastenError,
    SessionExpired,
    SessionNotFound,
)
from sandkasten_integrations.framework_import import framework_import

with framework_import("Pydantic AI", "pydantic-ai"):
    import anyio
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.tools import AgentDepsT, RunContext
    from pydantic_ai.workspaces import (
        CommandResult,
        FileEntry,
        Workspace,
        WorkspaceBackend,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sandkasten import FileEntry as SandboxFileEntry
    from sandkasten import Result

PROVIDER: Final = "sandkasten"
WORKING_DIR: Final = "/workspace"
# A limit for both streams together. More is an error, because output must be complete.
MAX_OUTPUT_BYTES: Final = 8 * 1024 * 1024
KILL_GRACE_S: Final = 10
# Options of a sandbox that set where it is.
PLACE: Final = ("url", "api_key", "data_dir", "backend")
# A command whose sandbox is closed by another task is Cancelled.
UNAVAILABLE: Final = (Cancelled, ExecNotFound, SandboxLost, SessionExpired, SessionNotFound)
# What a shell ends with.
NOT_EXECUTABLE, NOT_FOUND = 126, 127


@dataclass
class SandkastenWorkspace(AbstractCapability[AgentDepsT]):
    """Give each run a sandbox. `options` are the keyword arguments of `AsyncSandbox`.

    A run that continues a message history continues in its sandbox.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = "sandkasten_workspace"

    @classmethod
    def combine(
        cls, capabilities: Sequence[AbstractCapability[AgentDepsT]]
    ) -> AbstractCapability[AgentDepsT]:
        return capabilities[-1]

    def get_workspace(
        self, ctx: RunContext[AgentDepsT], *, ref: WorkspaceRef | None
    ) -> WorkspaceBackend | None:
        if ref is not None and ref.provider != PROVIDER:
            return None
        return SandkastenWorkspaceBackend(ref=ref, **self.options)


class SandkastenWorkspaceBackend:
    """Run commands and use files in one sandbox: `box`, the one of `ref`, or a new one.

    A new one is created by the first operation with `options`, the keyword arguments of
    `AsyncSandbox`. Pydantic AI never removes it: the caller does, or its idle time ends it.
    """

    def __init__(
        self,
        box: AsyncSandbox | None = None,
        *,
        ref: WorkspaceRef | None = None,
        **options: Any,
    ) -> None:
        self._box = box
        self._ref = ref if box is None else WorkspaceRef(provider=PROVIDER, id=box.id)
        self._options = options
        self._opening: asyncio.Task[AsyncSandbox] | None = None

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    async def sandbox(self) -> AsyncSandbox:
        """Return the sandbox; create or find it first if this has not happened yet."""
        if self._box is not None:
            return self._box
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        # A caller that is cancelled does not cancel the creation, so that its id is not lost.
        with _errors_of_pydantic_ai():
            return await asyncio.shield(self._opening)

    async def _open(self) -> AsyncSandbox:
        try:
            if self._ref is None:
                self._box = await AsyncSandbox(**self._options)
                self._ref = WorkspaceRef(provider=PROVIDER, id=self._box.id)
            else:
                place = {name: self._options[name] for name in PLACE if name in self._options}
                self._box = await AsyncSandbox.attach(self._ref.id, **place)
            return self._box
        finally:
            self._opening = None

    async def working_dir(self) -> str:
        await self.sandbox()
        return WORKING_DIR

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (of Pydantic AI)
    ) -> CommandResult:
        if isinstance(command, str) != shell:
            raise TypeError("a command must be a string with shell=True, and a list without it")
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout}")
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        box = await self.sandbox()
        with _errors_of_pydantic_ai():
            try:
                done = await _run_to_end(box, argv, env, timeout)
            except CommandNotFound as exc:
                return CommandResult(exit_code=NOT_FOUND, stdout="", stderr=f"{exc}\n")
            except CommandNotExecutable as exc:
                return CommandResult(exit_code=NOT_EXECUTABLE, stdout="", stderr=f"{exc}\n")
        return _ended(done, timeout)

    # Files

    async def read_bytes(self, path: str) -> bytes:
        box = await self.sandbox()
        with _errors_of_pydantic_ai():
            return bytes(await box.read(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        box = await self.sandbox()
        with _errors_of_pydantic_ai():
            await box.write(path, data)

    async def stat(self, path: str) -> FileEntry:
        box = await self.sandbox()
        with _errors_of_pydantic_ai():
            return _entry(path, await box.stat(path))

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        box = await self.sandbox()
        with _errors_of_pydantic_ai():
            entries = await box.ls(path)
            return [
                await _followed(box, posixpath.join(path, entry.name), entry) for entry in entries
            ]

    async def make_dir(self, path: str) -> None:
        box = await self.sandbox()
        with _errors_of_pydantic_ai():
            await box.mkdir(path)

    async def remove(self, path: str) -> None:
        box = await self.sandbox()
        parent, name = posixpath.split(posixpath.normpath(path))
        target = posixpath.join(await Workspace(self).realpath(parent), name)
        if f"{WORKING_DIR}/".startswith(f"{target.rstrip('/')}/"):
            raise ValueError(f"{path} cannot be removed: the working directory is below it")
        with _errors_of_pydantic_ai():
            await box.remove(path, recursive=True)

    async def exists(self, path: str) -> bool:
        box = await self.sandbox()
        with _errors_of_pydantic_ai():
            try:
                await box.stat(path)
            except (FileNotFound, NotADirectory):
                return False
        return True


async def _run_to_end(
    box: AsyncSandbox, argv: list[str], env: Mapping[str, str] | None, timeout_s: float | None
) -> Result:
    """Run a command; a caller that is cancelled stops it."""
    starting = asyncio.ensure_future(
        box.start(
            argv,
            env=env,
            timeout_seconds=timeout_s,
            max_output_bytes=MAX_OUTPUT_BYTES,
            raw_output=True,
        )
    )
    try:
        return await (await asyncio.shield(starting)).wait()
    except asyncio.CancelledError:
        # A scope of anyio cancels every await in it, so this needs its own scope.
        with anyio.move_on_after(KILL_GRACE_S, shield=True), suppress(SandkastenError):
            await (await starting).kill()
        raise


def _ended(done: Result, timeout_s: float | None) -> CommandResult:
    if done.timed_out:
        raise WorkspaceTimeoutError(
            f"the command did not end within {timeout_s} seconds",
            stdout=done.stdout,
            stderr=done.stderr,
        )
    if done.exit_status is None:
        raise WorkspaceUnavailableError(f"the end of the command is unknown ({done.status})")
    if done.truncated:
        raise WorkspaceOutputLimitError(
            f"the command wrote more than {MAX_OUTPUT_BYTES} bytes",
            limit=MAX_OUTPUT_BYTES,
            stdout=done.stdout,
            stderr=done.stderr,
        )
    return CommandResult(exit_code=done.exit_status, stdout=done.stdout, stderr=done.stderr)


async def _followed(box: AsyncSandbox, path: str, entry: SandboxFileEntry) -> FileEntry:
    """Return an entry of a listing as its target is; a link that leads nowhere as it is."""
    if entry.type == "symlink":
        with suppress(FileError, FileNotFound, PolicyDenied):
            return _entry(path, await box.stat(path))
    return _entry(path, entry)


def _entry(path: str, entry: SandboxFileEntry) -> FileEntry:
    return FileEntry(
        name=posixpath.basename(posixpath.normpath(path)),
        path=path,
        is_dir=entry.is_dir,
        size=entry.size if entry.type == "file" else None,
    )


@contextmanager
def _errors_of_pydantic_ai() -> Iterator[None]:
    """Raise what Pydantic AI documents. Most errors of files are those of the system already."""
    try:
        yield
    except UNAVAILABLE as exc:
        raise WorkspaceUnavailableError(str(exc)) from exc
    except PolicyDenied as exc:
        raise PermissionError(str(exc)) from exc
    except FileError as exc:
        if isinstance(exc, OSError):
            raise
        raise OSError(str(exc)) from exc
