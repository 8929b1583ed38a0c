"""Sandboxes for the sandbox agents of the OpenAI Agents SDK."""

from __future__ import annotations

import glob
import io
import tempfile
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from urllib.parse import urlsplit

from sandkasten import AsyncSandbox, CommandNotFound, FileNotFound, NotFound, SandkastenError
from sandkasten_integrations.framework_import import framework_import

with framework_import("the OpenAI Agents SDK", "openai-agents"):
    from agents.sandbox.errors import (
        ExecTimeoutError,
        ExecTransportError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
    )
    from agents.sandbox.manifest import Manifest
    from agents.sandbox.session import (
        BaseSandboxClient,
        BaseSandboxClientOptions,
        BaseSandboxSession,
        Instrumentation,
        SandboxSession,
        SandboxSessionState,
    )
    from agents.sandbox.session.pty_types import (
        PtyExecUpdate,
        allocate_pty_process_id,
        clamp_pty_yield_time_ms,
        resolve_pty_write_yield_time_ms,
        truncate_text_by_tokens,
    )
    from agents.sandbox.snapshot import resolve_snapshot
    from agents.sandbox.types import ExecResult, ExposedPortEndpoint

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec
    from agents.sandbox.types import User

    from sandkasten import AsyncProcess, Result

_NOT_FOUND = 127
_SPOOLED_BYTES = 16 << 20


class SandkastenSandboxClientOptions(BaseSandboxClientOptions):
    """What a sandbox is created with; `options` are any options of `AsyncSandbox`."""

    type: Literal["sandkasten"] = "sandkasten"
    image: str | None = None
    exposed_ports: tuple[int, ...] = ()
    options: dict[str, Any] = {}


class SandkastenSandboxSessionState(SandboxSessionState):
    """What finds the sandbox again, or creates an equal one."""

    type: Literal["sandkasten"] = "sandkasten"
    sandbox_id: str
    image: str | None = None
    options: dict[str, Any] = {}


class SandkastenSandboxSession(BaseSandboxSession):
    """A session of the SDK on one sandbox."""

    def __init__(self, state: SandkastenSandboxSessionState, box: AsyncSandbox) -> None:
        self.state: SandkastenSandboxSessionState = state
        self.box = box
        self._processes: dict[int, tuple[AsyncProcess, int]] = {}

    async def _command(self, command: Iterable[str | Path]) -> tuple[list[str], dict[str, Any]]:
        argv, user = [str(word) for word in command], None
        if argv[:2] == ["sudo", "-u"] and argv[3:4] == ["--"]:
            # The SDK writes a user in this way.
            user, argv = argv[2], argv[4:]
        env = await self.state.manifest.environment.resolve()
        return argv, {"env": env, "cwd": self.state.manifest.root, "user": user}

    async def _exec_internal(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ASYNC109  (of the SDK)
    ) -> ExecResult:
        argv, more = await self._command(command)
        try:
            done = await self.box.exec(argv, timeout_seconds=timeout, **more)
        except CommandNotFound as exc:
            return ExecResult(stdout=b"", stderr=f"{exc}\n".encode(), exit_code=_NOT_FOUND)
        except SandkastenError as exc:
            raise ExecTransportError(command=command, cause=exc, message=str(exc)) from exc
        if done.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        return ExecResult(stdout=done.stdout_data, stderr=done.stderr_data, exit_code=_status(done))

    # Commands that go on

    def supports_pty(self) -> bool:
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ASYNC109  (of the SDK)
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        argv, more = await self._command(
            self._prepare_exec_command(*command, shell=shell, user=user)
        )
        try:
            process = await self.box.start(
                argv, timeout_seconds=timeout, pty=tty, keep_stdin_open=tty, **more
            )
        except SandkastenError as exc:
            raise ExecTransportError(command=command, cause=exc, message=str(exc)) from exc
        number = allocate_pty_process_id(set(self._processes))
        self._processes[number] = (process, 0)
        wait_ms = clamp_pty_yield_time_ms(
            int((10 if yield_time_s is None else yield_time_s) * 1000)
        )
        return await self._update(number, wait_ms, max_output_tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        process, _ = self._resolve_pty_session_entry(
            pty_processes=self._processes, session_id=session_id
        )
        if chars:
            await process.write_stdin(chars)
        wait_ms = resolve_pty_write_yield_time_ms(
            yield_time_ms=int((yield_time_s or 0.25) * 1000), input_empty=not chars
        )
        return await self._update(session_id, wait_ms, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        processes, self._processes = self._processes, {}
        for process, _ in processes.values():
            try:
                await process.kill()
            except NotFound:
                continue

    async def _update(self, number: int, wait_ms: int, most: int | None) -> PtyExecUpdate:
        process, last_seq = self._processes[number]
        done = await process.wait(wait_ms / 1000)
        pieces = await process.output(last_seq)
        if done.running:
            self._processes[number] = (process, pieces[-1].seq if pieces else last_seq)
        else:
            del self._processes[number]
        text = b"".join(piece.data for piece in pieces).decode("utf-8", "replace")
        cut, tokens = truncate_text_by_tokens(text, most)
        return PtyExecUpdate(
            process_id=number if done.running else None,
            output=cut.encode(),
            exit_code=None if done.running else _status(done),
            original_token_count=tokens,
        )

    # Files

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        return io.BytesIO(await self._bytes(path, None))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        return await self._bytes(path, max_bytes)

    async def _bytes(self, path: Path, most: int | None) -> bytes:
        try:
            return await self.box.read(str(self.normalize_path(path)), max_bytes=most)
        except FileNotFound as exc:
            raise WorkspaceReadNotFoundError(path=path, cause=exc) from exc
        except SandkastenError as exc:
            raise WorkspaceArchiveReadError(path=path, cause=exc) from exc

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        target = self.normalize_path(path, for_write=True)
        try:
            await self.box.write(str(target), data.read())
        except SandkastenError as exc:
            raise WorkspaceArchiveWriteError(path=target, cause=exc) from exc

    async def persist_workspace(self) -> io.IOBase:
        root = self._workspace_root_path()
        spool: Any = tempfile.SpooledTemporaryFile(_SPOOLED_BYTES)  # noqa: SIM115  (returned)
        try:
            skipped = [
                f"/{glob.escape(path.as_posix())}"
                for path in self._persist_workspace_skip_relpaths()
            ]
            await self.box.download_tar(str(root), spool, exclude=skipped)
            spool.seek(0)
            return spool
        except SandkastenError as exc:
            raise WorkspaceArchiveReadError(path=root, cause=exc) from exc

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self._workspace_root_path()
        try:
            await self.box.upload_tar(data.read(), str(root))
        except SandkastenError as exc:
            raise WorkspaceArchiveWriteError(path=root, cause=exc) from exc

    # Life

    async def running(self) -> bool:
        try:
            return (await self.box.info()).status == "running"
        except SandkastenError:
            return False

    async def _shutdown_backend(self) -> None:
        await self.box.close()

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        link = urlsplit(await self.box.url(port))
        tls = link.scheme == "https"
        return ExposedPortEndpoint(
            host=link.hostname or "",
            port=link.port or (443 if tls else 80),
            tls=tls,
            query=link.query,
        )


class SandkastenSandboxClient(BaseSandboxClient[SandkastenSandboxClientOptions]):
    """Creates the sandboxes of `SandboxRunConfig(client=…)`.

    `place` is where they are: `url` and `api_key` of a daemon, or `data_dir`.
    """

    backend_id = "sandkasten"
    supports_default_options = True

    def __init__(self, *, instrumentation: Instrumentation | None = None, **place: Any) -> None:
        self._place = place
        self._instrumentation = instrumentation or Instrumentation()

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: SandkastenSandboxClientOptions | None = None,
    ) -> SandboxSession:
        wanted = options or SandkastenSandboxClientOptions()
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        session_id = uuid.uuid4()
        async with AsyncExitStack() as unless_created:
            box = await unless_created.enter_async_context(
                AsyncSandbox(wanted.image, **wanted.options, **self._place)
            )
            state = SandkastenSandboxSessionState(
                session_id=session_id,
                manifest=manifest,
                snapshot=resolve_snapshot(snapshot, str(session_id)),
                exposed_ports=wanted.exposed_ports,
                sandbox_id=box.id,
                image=wanted.image,
                options=wanted.options,
            )
            session = self._session(state, box)
            unless_created.pop_all()
        return session

    async def delete(self, session: SandboxSession) -> SandboxSession:
        await _inner(session).box.close()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Return the session on its sandbox, or on a new one with its last snapshot."""
        if not isinstance(state, SandkastenSandboxSessionState):
            _wrong_type(state)
        state.assert_path_grants_rebound()
        preserved = True
        async with AsyncExitStack() as unless_resumed:
            try:
                box = await AsyncSandbox.attach(state.sandbox_id, **self._place)
            except NotFound:
                preserved = False
                box = await unless_resumed.enter_async_context(
                    AsyncSandbox(state.image, **state.options, **self._place)
                )
                state.sandbox_id, state.workspace_root_ready = box.id, False
            session = self._session(state, box)
            _inner(session)._set_start_state_preserved(preserved)
            unless_resumed.pop_all()
        return session

    def _session(self, state: SandkastenSandboxSessionState, box: AsyncSandbox) -> SandboxSession:
        inner = SandkastenSandboxSession(state, box)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, SandkastenSandboxSessionState)


def _inner(session: SandboxSession) -> SandkastenSandboxSession:
    inner = session._inner
    if not isinstance(inner, SandkastenSandboxSession):
        _wrong_type(inner)
    return inner


def _wrong_type(value: object) -> NoReturn:
    raise TypeError(f"SandkastenSandboxClient has no {type(value).__name__}; use its own client")


def _status(done: Result) -> int:
    return 1 if done.exit_status is None else done.exit_status


__all__ = [
    "SandkastenSandboxClient",
    "SandkastenSandboxClientOptions",
    "SandkastenSandboxSession",
    "SandkastenSandboxSessionState",
]
