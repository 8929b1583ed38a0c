"""Give agents of Microsoft's Agent Framework a shell and files in a sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sandkasten import AsyncSandbox, FileNotFound, Result
from sandkasten_integrations.framework_import import framework_import

with framework_import("Agent Framework", "agent-framework"):
    from agent_framework import AgentFileStore, FileStoreEntry, FunctionTool, tool

if TYPE_CHECKING:
    from typing import Self

_DESCRIPTION = (
    "Run a command in a shell on Linux, in a sandbox. The working directory, variables and files "
    "stay for the next command."
)


@dataclass(frozen=True)
class SandboxShellResult:
    """What a command printed and how it ended; the fields of the framework's `ShellResult`."""

    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int
    truncated: bool = False
    timed_out: bool = False
    why: str = ""

    def format_for_model(self) -> str:
        parts = (
            self.stdout,
            f"stderr: {self.stderr}" if self.stderr else "",
            "[output truncated]" if self.truncated else "",
            "[command timed out]" if self.timed_out else self.why,
            f"exit_code: {self.exit_code}",
        )
        return "\n".join(filter(None, parts))


class SandkastenShell:
    """A shell like the framework's `DockerShellTool`, on one sandbox; `options` are a sandbox's."""

    def __init__(
        self, image: str | None = None, *, timeout: float | None = 60, **options: Any
    ) -> None:
        self._image, self._timeout, self._options = image, timeout, options
        self._box: AsyncSandbox | None = None

    @property
    def sandbox(self) -> AsyncSandbox:
        if self._box is None:
            raise ValueError("the shell is not started; call start or use `async with`")
        return self._box

    @property
    def files(self) -> SandboxFileStore:
        """The files of the sandbox, for a `FileAccessProvider`."""
        return SandboxFileStore(self.sandbox)

    async def start(self) -> None:
        """Create the sandbox. Quiet if there is one."""
        if self._box is None:
            self._box = await AsyncSandbox(self._image, **self._options)

    async def close(self) -> None:
        """Destroy the sandbox. Quiet if there is none."""
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def run(
        self,
        command: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  (the name is the framework's)
    ) -> SandboxShellResult:
        """Run a command in the shell that stays, for `timeout` seconds at most."""
        await self.start()
        seconds = self._timeout if timeout is None else timeout
        return _result(await self.sandbox.exec(command, timeout_seconds=seconds))

    def as_function(
        self,
        *,
        name: str = "run_shell",
        description: str = _DESCRIPTION,
        approval_mode: Literal["always_require", "never_require"] = "never_require",
    ) -> FunctionTool:
        """Return the tool for `Agent(tools=…)`."""

        async def run_shell(command: str) -> str:
            return (await self.run(command)).format_for_model()

        return tool(func=run_shell, name=name, description=description, approval_mode=approval_mode)


class SandboxFileStore(AgentFileStore):
    """The files below a directory of a sandbox, for `FileAccessProvider(store)`.

    Links are resolved inside the sandbox, so a path never leads to the host.
    """

    def __init__(self, sandbox: AsyncSandbox, root: str = "/workspace") -> None:
        self._box, self._root = sandbox, root.rstrip("/")

    async def write(self, path: str, content: str, *, overwrite: bool = True) -> None:
        await self._box.write(self._path(path), content, overwrite=overwrite)

    async def read(self, path: str) -> str | None:
        try:
            return (await self._box.read(self._path(path))).text
        except FileNotFound:
            return None

    async def delete(self, path: str) -> bool:
        return await self._box.remove(self._path(path), missing_ok=True) > 0

    async def list_children(self, directory: str = "") -> list[FileStoreEntry]:
        try:
            entries = await self._box.ls(self._path(directory))
        except FileNotFound:
            return []
        entries.sort(key=lambda entry: not entry.is_dir)
        kinds = {True: FileStoreEntry.DIRECTORY, False: FileStoreEntry.FILE}
        return [FileStoreEntry(entry.name, kinds[entry.is_dir]) for entry in entries]

    async def file_exists(self, path: str) -> bool:
        try:
            return not (await self._box.stat(self._path(path))).is_dir
        except FileNotFound:
            return False

    async def create_directory(self, path: str) -> None:
        await self._box.mkdir(self._path(path))

    def _path(self, path: str) -> str:
        parts = path.replace("\\", "/").split("/")
        if path.startswith("/") or ".." in parts:
            raise ValueError(f"{path!r} must be a relative path without '..'")
        return f"{self._root}/{path}".rstrip("/")


def _result(done: Result) -> SandboxShellResult:
    status = 124 if done.timed_out else done.exit_status
    return SandboxShellResult(
        done.stdout,
        done.stderr,
        1 if status is None else status,
        done.duration_ms,
        done.truncated,
        done.timed_out,
        done.why.message if done.why else "",
    )


__all__ = ["SandboxFileStore", "SandboxShellResult", "SandkastenShell"]
