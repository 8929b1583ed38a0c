"""Sandboxes as deployments of SWE-ReX, for SWE-agent and other programs."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandkasten import AsyncSandbox, SandkastenError, ShellNotFound
from sandkasten_integrations.framework_import import framework_import

with framework_import("SWE-ReX", "swe-rex"):
    from swerex.deployment.abstract import AbstractDeployment
    from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
    from swerex.exceptions import (
        BashIncorrectSyntaxError,
        CommandTimeoutError,
        DeploymentNotStartedError,
        NonZeroExitCodeError,
        SessionDoesNotExistError,
        SessionExistsError,
    )
    from swerex.runtime.abstract import (
        AbstractRuntime,
        BashAction,
        BashInterruptAction,
        BashObservation,
        CloseBashSessionRequest,
        CloseBashSessionResponse,
        CloseResponse,
        Command,
        CommandResponse,
        CreateBashSessionRequest,
        CreateBashSessionResponse,
        IsAliveResponse,
        ReadFileRequest,
        ReadFileResponse,
        UploadRequest,
        UploadResponse,
        WriteFileRequest,
        WriteFileResponse,
    )
    from swerex.utils.log import get_logger

if TYPE_CHECKING:
    import logging

    from sandkasten import AsyncProcess

# How often the output of an interactive program is looked at.
_POLL_S = 0.05


@dataclass(slots=True)
class _Program:
    """An interactive program that waits for input."""

    process: AsyncProcess
    seen: int = 0
    text: str = field(default="")


class SandkastenRuntime(AbstractRuntime):
    """A runtime of SWE-ReX on one sandbox. A session is one of its persistent shells.

    A command whose time is over is ended; the session can be used at once.
    """

    def __init__(self, box: AsyncSandbox, *, logger: logging.Logger | None = None) -> None:
        self.logger = logger or get_logger("rex-runtime")
        self.box = box
        self._sessions: dict[str, _Program | None] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:  # noqa: ASYNC109
        try:
            status = (await self.box.info()).status
        except SandkastenError as exc:
            return IsAliveResponse(is_alive=False, message=str(exc))
        return IsAliveResponse(is_alive=status == "running", message=f"the sandbox is {status}")

    async def create_session(self, request: CreateBashSessionRequest) -> CreateBashSessionResponse:
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        self._sessions[request.session] = None
        output = ""
        if request.startup_source:
            script = "; ".join(f"source {shlex.quote(path)}" for path in request.startup_source)
            output = (await self.box.exec(script, shell=request.session)).output
        return CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: BashAction | BashInterruptAction) -> BashObservation:
        program = self._session(action.session)
        if isinstance(action, BashInterruptAction):
            return await self._interrupt(action, program)
        if program is not None or action.is_interactive_command:
            return await self._converse(action, program)
        await self._check_syntax(action.command)
        done = await self.box.exec(
            action.command, shell=action.session, timeout_seconds=action.timeout
        )
        if done.timed_out:
            raise _late(action.command, action.timeout)
        if action.check == "raise" and done.exit_status != 0:
            raise _failed(action, done.exit_status, done.output)
        status = None if action.check == "ignore" else done.exit_status
        return BashObservation(output=done.output, exit_code=status)

    async def close_session(self, request: CloseBashSessionRequest) -> CloseBashSessionResponse:
        program = self._session(request.session)
        del self._sessions[request.session]
        if program is not None:
            await program.process.kill()
        try:
            await self.box.close_shell(request.session)
        except ShellNotFound:
            # No command ran in it.
            self.logger.debug("session %s had no shell", request.session)
        return CloseBashSessionResponse()

    async def execute(self, command: Command) -> CommandResponse:
        words = [command.command] if isinstance(command.command, str) else command.command
        argv = ["/bin/sh", "-c", *words] if command.shell else words
        done = await self.box.exec(
            argv, timeout_seconds=command.timeout, env=command.env, cwd=command.cwd
        )
        if done.timed_out:
            raise _late(command.command, command.timeout)
        if command.check and done.exit_status != 0:
            raise _failed(command, done.exit_status, done.output)
        merged = command.merge_output_streams
        return CommandResponse(
            stdout=done.output if merged else done.stdout,
            stderr="" if merged else done.stderr,
            exit_code=done.exit_status,
        )

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        data = await self.box.read(request.path)
        text = bytes(data).decode(request.encoding or "utf-8", request.errors or "strict")
        return ReadFileResponse(content=text)

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        await self.box.write(request.path, request.content)
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        await self.box.upload(request.source_path, request.target_path)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        for name in [*self._sessions]:
            await self.close_session(CloseBashSessionRequest(session=name))
        return CloseResponse()

    def _session(self, name: str) -> _Program | None:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]

    async def _check_syntax(self, command: str) -> None:
        done = await self.box.exec(["bash", "-n"], stdin=command)
        if not done.ok:
            raise BashIncorrectSyntaxError(
                f"{command!r} is not valid bash: {done.stderr}",
                extra_info={"bash_stdout": done.stdout, "bash_stderr": done.stderr},
            )

    # Programs that wait for input: on a terminal beside the shell, with its directory and variables

    async def _converse(self, action: BashAction, program: _Program | None) -> BashObservation:
        if program is None:
            process = await self.box.start(
                ["bash", "-c", f"{await self._variables(action.session)}\n{action.command}"],
                cwd=(await self.box.exec(":", shell=action.session)).cwd,
                pty=True,
                keep_stdin_open=True,
            )
            program = self._sessions[action.session] = _Program(process)
        else:
            await program.process.write_stdin(f"{action.command}\n")
        return await self._observe(action, program, action.command)

    async def _variables(self, session: str) -> str:
        return (await self.box.exec("export -p", shell=session)).stdout

    async def _observe(
        self, action: BashAction | BashInterruptAction, program: _Program, command: str
    ) -> BashObservation:
        """Wait for an expected string, or for the end of the program."""
        try:
            async with asyncio.timeout(action.timeout):
                while True:
                    done = await program.process.wait(_POLL_S)
                    for piece in await program.process.output(program.seen):
                        program.seen, program.text = piece.seq, program.text + piece.text
                    expected = next((text for text in action.expect if text in program.text), "")
                    if expected or not done.running:
                        break
        except TimeoutError as exc:
            raise _late(command, action.timeout) from exc
        output, _, program.text = (
            program.text.partition(expected) if expected else (program.text, "", "")
        )
        if not done.running:
            self._sessions[action.session] = None
        output = output.replace("\r\n", "\n").lstrip().removeprefix(command.strip()).strip()
        return BashObservation(output=output, exit_code=0, expect_string=expected)

    async def _interrupt(
        self, action: BashInterruptAction, program: _Program | None
    ) -> BashObservation:
        if program is None:
            # The deadline of a command has ended it already.
            return BashObservation(exit_code=0)
        for _ in range(action.n_retry):
            await program.process.signal("INT")
            try:
                return await self._observe(action, program, "")
            except CommandTimeoutError:
                continue
        await program.process.kill()
        await program.process.wait()
        self._sessions[action.session] = None
        return BashObservation(exit_code=0)


class SandkastenDeployment(AbstractDeployment):
    """A deployment of SWE-ReX that creates one sandbox; `options` are those of a sandbox."""

    def __init__(
        self, image: str | None = None, *, logger: logging.Logger | None = None, **options: Any
    ) -> None:
        self.logger = logger or get_logger("rex-deploy")
        self._hooks = CombinedDeploymentHook()
        self._wanted = (image, options)
        self._runtime: SandkastenRuntime | None = None

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:  # noqa: ASYNC109
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="the deployment is not started")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Create the sandbox. Quiet if there is one."""
        if self._runtime is None:
            self._hooks.on_custom_step("Creating sandbox")
            image, options = self._wanted
            box = await AsyncSandbox(image, **options)
            self._runtime = SandkastenRuntime(box, logger=self.logger)

    async def stop(self) -> None:
        """Destroy the sandbox. Quiet if there is none."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.box.close()

    @property
    def runtime(self) -> SandkastenRuntime:
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime


def _late(command: object, seconds: float | None) -> CommandTimeoutError:
    return CommandTimeoutError(f"timeout after {seconds} seconds while running {command!r}")


def _failed(action: BashAction | Command, status: int | None, output: str) -> NonZeroExitCodeError:
    message = f"command {action.command!r} failed with exit code {status}: {output!r}"
    return NonZeroExitCodeError(f"{action.error_msg}: {message}" if action.error_msg else message)


__all__ = ["SandkastenDeployment", "SandkastenRuntime"]
