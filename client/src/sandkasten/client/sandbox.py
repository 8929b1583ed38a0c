"""A sandbox as an object: the asynchronous client, with all its logic.

It uses a `Transport` and knows nothing about processes, sockets or isolation; `sync.py` has the
same class for blocking code. Every failure is a class of `errors`. A command that ran and failed is
a result.
"""

from __future__ import annotations

import asyncio
import builtins
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from sandkasten.client.caller_input import Command, check_keywords, takes
from sandkasten.client.contexts import AsyncContexts, run_in_context
from sandkasten.client.port_forward import AsyncPortForward
from sandkasten.client.process import AsyncExecStream, AsyncProcess, AsyncTerminal
from sandkasten.client.results import PastResult, Result, RunResult, past_of, result_of
from sandkasten.client.server.daemon_or_embedded import place_of
from sandkasten.client.server.server_pool import connect, previews_of
from sandkasten.client.transfer.file_methods import SandboxFiles
from sandkasten.errors import InvalidRequest, NotFound, SandkastenError, SessionNotFound
from sandkasten.model.commands.exec_values import DEFAULT_SHELL, CommandKeywords, ExecRequest
from sandkasten.model.request_spellings import command_of, exec_request, sandbox_options
from sandkasten.model.sandbox.sandbox_options import SessionKeywords
from sandkasten.model.sandbox.sandbox_values import (
    CreateRequest,
    ForkRequest,
    Info,
    Process,
    Stats,
    UpdateRequest,
)
from sandkasten.model.sandbox.snapshot import SnapshotRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from os import PathLike
    from types import TracebackType

    from sandkasten.client.server.transport import Transport
    from sandkasten.model.commands.code_values import CodeContext, CodeDisplay, CodeResult
    from sandkasten.model.sandbox.network_policy import NetworkAttempt, NetworkStatus
    from sandkasten.model.sandbox.snapshot import Snapshot

# Removing a sandbox takes milliseconds; a caller that was cancelled waits no longer than this.
CLOSE_GRACE_S: Final = 10.0


class AsyncSandbox(SandboxFiles):
    """An isolated Linux environment with a workspace and shells.

    `async with AsyncSandbox() as box` creates it and destroys it at the end of the block; `box =
    await AsyncSandbox()` creates it and leaves the end to you (or to its idle time).
    """

    @takes(SessionKeywords)
    def __init__(
        self,
        image: str | None = None,
        *,
        data_dir: str | PathLike[str] | None = None,
        url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[SessionKeywords],
    ) -> None:
        """Describe the sandbox; nothing is created yet.

        `session_key` finds the live sandbox of that key or creates it. `workspace` names one that
        outlives the sandbox, created at first use and used by one sandbox at a time unless
        `workspace_mode` is "shared". `snapshot` is the id or name of the snapshot to start from.
        `mounts` names the operator's host mounts. `pip_packages` and `npm_packages` are installed
        before it starts; it needs no network for them. With `url` (or SANDKASTEN_URL) that daemon
        creates it, otherwise the daemon that serves the data directory, otherwise this process;
        `url="embedded"` is this process in any case.
        """
        check_keywords("Sandbox", SessionKeywords, options)
        self._place = place_of(data_dir, options.get("backend"), url, api_key)
        self._wanted: CreateRequest | None = CreateRequest(
            sandbox_options({"image": image, **options}), session_key=options.get("session_key")
        )
        self._id: str | None = None
        self._info: Info | None = None
        self._destroy_on_exit = True
        self._closed = False
        self._transport: Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    async def attach(
        cls,
        id: str,
        *,
        destroy_on_exit: bool = False,
        data_dir: str | PathLike[str] | None = None,
        backend: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> Self:
        """Return an existing sandbox. A `with` block destroys it only with `destroy_on_exit`."""
        box = cls(data_dir=data_dir, backend=backend, url=url, api_key=api_key)
        box._wanted = None
        box._id = id
        box._destroy_on_exit = destroy_on_exit
        box._info = await (await box.transport()).get(id)
        box._id = box._info.id
        return box

    @classmethod
    async def list(
        cls,
        *,
        data_dir: str | PathLike[str] | None = None,
        backend: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> builtins.list[Info]:
        """Return every sandbox, oldest first."""
        transport = await connect(place_of(data_dir, backend, url, api_key))
        return sorted(await transport.list(), key=lambda info: info.created_at)

    def __repr__(self) -> str:
        state = "closed" if self._closed else (self._id or "not started")
        return f"{type(self).__name__}({state})"

    # Life

    async def begin(self) -> Self:
        """Create it, as `await` and `async with` do. A second call does nothing."""
        if self._wanted is not None and not self._closed:
            wanted, self._wanted = self._wanted, None
            try:
                self._info = await (await self.transport()).create(wanted)
            except BaseException:
                self._wanted = wanted
                raise
            self._id = self._info.id
            self._destroy_on_exit = self._info.created
        return self

    def __await__(self) -> Generator[None, None, Self]:
        return self.begin().__await__()

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._destroy_on_exit:
            closing = asyncio.ensure_future(self.close())
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                await asyncio.wait({closing}, timeout=CLOSE_GRACE_S)
                raise
            except SandkastenError as exc:
                if error is None:
                    raise
                # The caller must see why the block failed; the idle time ends the sandbox.
                error.add_note(f"the sandbox was not destroyed: {exc}")

    async def close(self) -> None:
        """Destroy it and everything in it. Quiet if it is closed or has ended already."""
        if self._closed or self._id is None:
            self._closed = True
            return
        transport = await self.transport()
        self._closed = True
        try:
            await transport.destroy(self._id)
        except NotFound:
            return
        except BaseException:
            self._closed = False
            raise

    def detach(self) -> str:
        """Keep it alive after the `with` block; returns its id, for `attach`."""
        self._destroy_on_exit = False
        return self.id

    @property
    def id(self) -> str:
        if self._closed:
            raise SessionNotFound(
                f"sandbox {self._id} was closed", hint="create a new one", sandbox_id=self._id
            )
        if self._id is None:
            raise InvalidRequest(
                "this sandbox was not started",
                hint="use `async with AsyncSandbox() as box` or `box = await AsyncSandbox()`",
            )
        return self._id

    @property
    def known(self) -> Info | None:
        """Return the last known description, without a request."""
        return self._info

    async def transport(self) -> Transport:
        """Return the server of this sandbox on the running loop (after a fork, a new one)."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._loop is not loop:
            self._transport = await connect(self._place)
            self._loop = loop
        return self._transport

    # What it is

    async def info(self) -> Info:
        transport = await self.transport()
        self._info = await transport.get(self.id)
        return self._info

    async def update(
        self,
        *,
        ttl_seconds: float | None = None,
        idle_timeout_seconds: float | None = None,
        lifetime_seconds: float | None = None,
        labels: Mapping[str, str] | None = None,
        network: str | Mapping[str, Any] | None = None,
    ) -> Info:
        """Change how long it lives, its labels (all of them), or what it may reach (at once)."""
        request = UpdateRequest(
            ttl_seconds=ttl_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
            lifetime_seconds=lifetime_seconds,
            labels=labels,
            network=network,
        )
        self._info = await (await self.transport()).update(self.id, request)
        return self._info

    async def pause(self) -> Info:
        """Stop everything inside until `resume`; commands and files answer Conflict meanwhile."""
        self._info = await (await self.transport()).pause(self.id)
        return self._info

    async def resume(self) -> Info:
        """Continue everything inside where it stopped. Quiet if it is not paused."""
        self._info = await (await self.transport()).resume(self.id)
        return self._info

    async def snapshot(
        self,
        name: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        keep_last: int | None = None,
    ) -> Snapshot:
        """Keep its files, as they are now, for `Sandbox(snapshot=…)`; it runs on.

        The image, limits, environment, network, labels and the shells' directories and variables
        are kept too. Processes and connections are not: `not_kept` lists them. `keep_last=3` then
        removes all but the newest three of this name, or of this sandbox if it has no name.
        """
        request = SnapshotRequest(name, labels, keep_last)
        return await (await self.transport()).snapshots.create(self.id, request)

    async def fork(
        self,
        count: int = 1,
        *,
        ttl_seconds: float | None = None,
        idle_timeout_seconds: float | None = None,
        lifetime_seconds: float | None = None,
        labels: Mapping[str, str] | None = None,
        network: str | Mapping[str, Any] | None = None,
    ) -> builtins.list[AsyncSandbox | SandkastenError]:
        """Create copies of it, all from one moment; it is stopped once and runs on.

        Each has its own id, and what a snapshot keeps. Without arguments, times, labels and network
        are those of this sandbox; `labels` are added to them. The list has an error in place of
        each copy that could not be created.
        """
        request = ForkRequest(
            count=count,
            ttl_seconds=ttl_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
            lifetime_seconds=lifetime_seconds,
            labels=labels,
            network=network,
        )
        forked = await (await self.transport()).fork(self.id, request)
        return [
            result if isinstance(result, SandkastenError) else self._copy(result)
            for result in forked.results
        ]

    def _copy(self, info: Info) -> AsyncSandbox:
        box = copy(self)
        box._id, box._info, box._destroy_on_exit = info.id, info, True
        return box

    async def reclaim(self) -> int:
        """Return unused memory (page cache) to the host; returns how many bytes."""
        return await (await self.transport()).reclaim(self.id)

    async def network(self) -> NetworkStatus:
        """Return what it may reach, what was counted, and the rules that it would need."""
        return await (await self.transport()).network.status(self.id)

    async def network_log(self, *, since_seq: int = 0) -> builtins.list[NetworkAttempt]:
        """Return what it tried to reach, oldest first; only the newest attempts are kept."""
        transport = await self.transport()
        return builtins.list(await transport.network.log(self.id, since_seq=since_seq))

    async def url(
        self, port: int, *, public: bool | None = None, ttl_seconds: float | None = None
    ) -> str:
        """Return a link to a port for a browser; the port has its own origin.

        It is private: the link is signed and works for an hour, or for `ttl_seconds`. `public=True`
        opens the port to every client that reaches the daemon, `public=False` closes it again.
        Requires a daemon.
        """
        previews = previews_of(await self.transport())
        preview = await previews.link(self.id, port, public=public, ttl_seconds=ttl_seconds)
        return preview.url

    async def revoke_url(self, url: str) -> None:
        """Revoke a link that `url` returned, and the cookies that it set."""
        await previews_of(await self.transport()).revoke(self.id, url)

    async def revoke_urls(self) -> None:
        """Revoke all links to ports of this sandbox. Ports that are public stay public."""
        await previews_of(await self.transport()).revoke(self.id, None)

    def forward(self, port: int, local_port: int = 0) -> AsyncPortForward:
        """Return a listener on 127.0.0.1 that passes connections on to a port, for a `with` block.

        `local_port` is its port on this machine; 0 is any free one. Every program on this machine
        can connect. Requires no daemon.
        """
        return AsyncPortForward(self, port, local_port)

    async def stats(self) -> Stats:
        """Return memory, CPU, processes and disk; if it is paused, only the kernel's counters."""
        return await (await self.transport()).stats(self.id)

    async def processes(self) -> builtins.list[Process]:
        return builtins.list(await (await self.transport()).processes(self.id))

    # Commands

    @takes(CommandKeywords)
    async def exec(
        self, cmd: Command, *, check: bool = False, **options: Unpack[CommandKeywords]
    ) -> Result:
        """Run a command and wait for its end.

        A string goes to the persistent shell, so `cd`, variables and jobs stay; a list is a
        fresh process. A deadline that passes is a result (`timed_out`) with the output so far.
        With `check`, anything but success raises (see `Result.check`).
        """
        request = _request("exec", cmd, options)
        result = result_of(await (await self.transport()).exec(self.id, request))
        return result.check(cmd) if check else result

    @takes(CommandKeywords)
    def exec_stream(self, cmd: Command, **options: Unpack[CommandKeywords]) -> AsyncExecStream:
        """Run a command and iterate over its output as it comes; `.result` is set at the end."""
        request = _request("exec_stream", cmd, options)
        return AsyncExecStream(self, lambda transport: transport.exec_stream(self.id, request))

    @takes(CommandKeywords)
    async def start(
        self,
        cmd: Command,
        *,
        keep_stdin_open: bool = False,
        **options: Unpack[CommandKeywords],
    ) -> AsyncProcess:
        """Start a command and return at once. It runs until it ends, or its sandbox does.

        With a timeout it is stopped then, even if nothing follows it. A string runs beside the
        persistent shell, with its directory and exported variables, and leaves it free;
        `stateful=True` runs it in the shell itself, where later commands wait for it.
        """
        request = replace(_request("start", cmd, options), keep_stdin_open=keep_stdin_open)
        answer = await (await self.transport()).exec_start(self.id, request)
        return AsyncProcess(self, answer.exec_id)

    def process(self, exec_id: str) -> AsyncProcess:
        """Return a handle on a command that was started earlier, maybe by another program."""
        return AsyncProcess(self, exec_id)

    async def close_shell(self, name: str = DEFAULT_SHELL) -> None:
        """End a persistent shell with its jobs; ShellNotFound if it is not open. The next command
        of that name gets a new shell, without the variables and the directory of this one.
        """
        await (await self.transport()).shell_close(self.id, name)

    async def execs(self) -> builtins.list[PastResult]:
        """Return the commands and the code that ran here, as far back as is remembered, oldest
        first, without the output of code.
        """
        return [past_of(entry) for entry in await (await self.transport()).execs(self.id)]

    def terminal(
        self,
        command: Sequence[str] | None = None,
        *,
        rows: int = 24,
        cols: int = 80,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> AsyncTerminal:
        """Return a terminal with a program (default: a login shell), for a `with` block."""
        argv = None if command is None else command_of({"cmd": command})
        if isinstance(argv, str):
            argv = ("/bin/sh", "-c", argv)
        return AsyncTerminal(
            self,
            lambda transport: transport.terminal(
                self.id, command=argv, rows=rows, cols=cols, env=env, cwd=cwd
            ),
        )

    @property
    def contexts(self) -> AsyncContexts:
        """The code contexts of this sandbox."""
        return AsyncContexts(self)

    async def run_code(
        self,
        code: str,
        language: str = "python",
        context: CodeContext | str | None = None,
        timeout_ms: float | None = None,
        env: Mapping[str, str] | None = None,
        *,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_result: Callable[[CodeDisplay], object] | None = None,
    ) -> CodeResult:
        """Run code in a context, which keeps variables; by default in the one of the language.

        Code that raises is a result with `error`. At the timeout the code is interrupted
        (`timed_out`), and the context stays usable. The callbacks get output as it comes.
        """
        return await run_in_context(
            self,
            code,
            language,
            context,
            timeout_ms=timeout_ms,
            env=env,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
        )

    async def run(
        self,
        code: str | bytes,
        runtime: str = "python",
        *,
        files: Mapping[str, str | bytes] | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout_ms: float | None = None,
        timeout_seconds: float | None = None,
    ) -> RunResult:
        """Run a piece of code in this sandbox, in a fresh process in the workspace.

        `files` are written first, relative to the workspace. For code that needs no sandbox
        of its own to stay, `sandkasten.run` is one call.
        """
        from sandkasten.client.code_run import run_code

        return await run_code(
            self,
            code,
            runtime,
            files=files,
            args=args,
            env=env,
            stdin=stdin,
            timeout_ms=timeout_ms,
            timeout_seconds=timeout_seconds,
        )


def _request(function: str, cmd: Command, options: CommandKeywords) -> ExecRequest:
    check_keywords(function, CommandKeywords, options)
    return exec_request({"cmd": cmd, **options})
