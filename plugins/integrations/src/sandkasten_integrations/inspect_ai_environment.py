"""Sandboxes as a sandbox environment of Inspect: `sandbox="sandkasten"` in a task.

Inspect finds it by the entry point group `inspect_ai`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from sandkasten import (
    AsyncSandbox,
    CommandNotExecutable,
    CommandNotFound,
    InvalidRequest,
    PolicyDenied,
    SandboxLost,
    SessionExpired,
    SessionNotFound,
)
from sandkasten_integrations.framework_import import framework_import

with framework_import("Inspect", "inspect"):
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
    from inspect_ai.util._sandbox.environment import SandboxUnavailableError
    from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator

# What an exec request may ask for at most.
MAX_KEPT_BYTES = 32 * 1024 * 1024
# Writing as a user is a command of that user, with the content on stdin.
WRITE = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
NOT_EXECUTABLE = "sandkasten-runner: cannot run "
READABLE = '[ ! -e "$1" ] || [ -r "$1" ]'


class SandkastenConfig(BaseModel, frozen=True, extra="allow"):
    """The keyword arguments of `Sandbox`, and the user that runs commands.

    `user` requires `profile="dev"` and an image. Without it, commands run as the sandbox's own
    user: root in profile dev, otherwise an ordinary one.
    """

    user: str | None = None


@sandboxenv(name="sandkasten")
class SandkastenEnvironment(SandboxEnvironment):
    """One sandbox for each sample. A config that is a string is the name of an image."""

    def __init__(self, box: AsyncSandbox, user: str | None = None) -> None:
        super().__init__()
        self.box = box
        self.user = user

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        if not isinstance(config, SandkastenConfig):
            config = SandkastenConfig.model_validate({"image": config})
        async with AsyncExitStack() as unless_started:
            box = await unless_started.enter_async_context(
                AsyncSandbox(**(config.model_extra or {}))
            )
            if config.user is not None:
                # The sandbox reports which user its image lacks; chown would only fail.
                await box.exec(["true"], user=config.user, check=True)
                await box.exec(["chown", config.user, "."], check=True)
            unless_started.pop_all()
        return {"default": cls(box, config.user)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls).box.close()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        if id is not None:
            await (await AsyncSandbox.attach(id)).close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return SandkastenConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,  # noqa: ASYNC109  (a name of Inspect)
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        with _errors_of_inspect():
            try:
                result = await self.box.exec(
                    cmd,
                    stdin=input,
                    cwd=cwd,
                    env=env,
                    user=user or self.user,
                    timeout_seconds=timeout,
                    max_output_bytes=min(most, MAX_KEPT_BYTES),
                    raw_output=True,
                )
            except CommandNotFound as exc:
                return ExecResult(False, 127, "", f"{exc}\n")
            except InvalidRequest as exc:
                if exc.details.get("field") != "user":
                    raise
                raise SandboxUserUnsupportedError(str(exc)) from exc
        if result.timed_out:
            raise TimeoutError(f"{cmd[0]} did not end within {timeout} seconds")
        if result.truncated:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.output
            )
        if result.exit_code == 126 and result.stderr.startswith(NOT_EXECUTABLE):
            raise PermissionError(result.stderr)
        status = result.exit_status
        if status is None:
            raise SandboxUnavailableError(f"the end of {cmd[0]} is unknown ({result.status})")
        return ExecResult(result.ok, status, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        with _errors_of_inspect():
            if self.user is not None:
                await self._as_user(WRITE, file, contents)
            else:
                await self.box.write(file, contents)

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with _errors_of_inspect():
            if self.user is not None:
                await self._as_user(READABLE, file)
            content = await self.box.read(file, max_bytes=most)
        if content.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return content.decode() if text else bytes(content)

    async def _as_user(self, script: str, file: str, content: str | bytes | None = None) -> None:
        words = ["/bin/sh", "-c", script, "sh", file]
        result = await self.box.exec(words, user=self.user, stdin=content)
        if result.ok:
            return
        if (await self.box.exec(["/bin/sh", "-c", '[ -d "$1" ]', "sh", file])).ok:
            raise IsADirectoryError(f"{file} is a directory")
        raise PermissionError(f"user {self.user} may not use {file}: {result.stderr}")


@contextmanager
def _errors_of_inspect() -> Iterator[None]:
    """Raise what Inspect documents. Errors of files are those of the system already."""
    try:
        yield
    except (CommandNotExecutable, PolicyDenied) as exc:
        raise PermissionError(str(exc)) from exc
    except (SandboxLost, SessionExpired, SessionNotFound) as exc:
        raise SandboxUnavailableError(str(exc)) from exc
