"""Protocols of the server of the client. No behaviour.

The engine has this shape; anything else that has it can replace it. Only classes of `errors` leave
an implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.access.preview_links import Preview
    from sandkasten.model.access.stored_secrets import Secret, SecretRequest
    from sandkasten.model.backends.backend_features import BackendReport
    from sandkasten.model.commands.code_values import (
        CodeContext,
        CodeReader,
        CodeRequest,
        CodeResult,
        ContextRequest,
    )
    from sandkasten.model.commands.exec_values import (
        Chunk,
        ChunkReader,
        ExecPast,
        ExecRequest,
        ExecResult,
    )
    from sandkasten.model.files.file_entries import (
        Change,
        FileContent,
        FileEntry,
        Listing,
        TarSummary,
    )
    from sandkasten.model.sandbox.network_policy import NetworkAttempt, NetworkStatus
    from sandkasten.model.sandbox.oneshot_values import RunRequest, RunResult
    from sandkasten.model.sandbox.readiness import Readiness, Tier
    from sandkasten.model.sandbox.sandbox_values import (
        CreateRequest,
        Info,
        Process,
        Stats,
        Swept,
        UpdateRequest,
    )
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten.model.sandbox.workspace import Workspace
    from sandkasten.ports import Images


class TerminalTransport(Protocol):
    """A live terminal. Iterating yields its output and ends when its program does."""

    @property
    def exec_id(self) -> str: ...
    async def send(self, data: bytes) -> None: ...
    async def resize(self, rows: int, cols: int) -> None: ...
    async def signal(self, signal: int) -> None: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def result(self) -> ExecResult: ...


class PortTransport(Protocol):
    """A connection to a port. Iterating yields what the server sends, until it ends its side."""

    async def send(self, data: bytes) -> None: ...
    async def end(self) -> None: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...


class PreviewsTransport(Protocol):
    """The previews of one server."""

    async def link(
        self,
        sandbox_id: str,
        port: int,
        *,
        public: bool | None = None,
        ttl_seconds: float | None = None,
    ) -> Preview: ...
    async def revoke(self, sandbox_id: str, link: str | None) -> None:
        """Revoke a link by its URL or id; None: all links of the sandbox."""


@runtime_checkable
class ServesPreviews(Protocol):
    """A server that browsers can reach: a daemon."""

    @property
    def previews(self) -> PreviewsTransport: ...


class FilesTransport(Protocol):
    """The file operations of one server; every path is the sandbox's own."""

    def by(self, user: str | None) -> FilesTransport: ...
    async def read(
        self,
        sandbox_id: str,
        path: str,
        *,
        offset: int = 0,
        limit: int | None = None,
        max_bytes: int | None = None,
    ) -> FileContent: ...
    def read_stream(
        self, sandbox_id: str, path: str, *, offset: int = 0, limit: int | None = None
    ) -> AbstractAsyncContextManager[tuple[FileEntry, AsyncIterator[bytes]]]: ...
    async def write(
        self,
        sandbox_id: str,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        overwrite: bool = True,
        flush: bool = True,
    ) -> FileEntry: ...
    async def stat(self, sandbox_id: str, path: str, *, follow: bool = True) -> FileEntry: ...
    async def list(
        self,
        sandbox_id: str,
        path: str,
        *,
        recursive: bool = False,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Listing: ...
    async def mkdir(
        self, sandbox_id: str, path: str, *, parents: bool = True, exist_ok: bool = True
    ) -> FileEntry: ...
    async def move(
        self, sandbox_id: str, source: str, destination: str, *, overwrite: bool = False
    ) -> FileEntry: ...
    async def remove(
        self, sandbox_id: str, path: str, *, recursive: bool = False, missing_ok: bool = False
    ) -> int: ...
    def watch(
        self, sandbox_id: str, path: str, *, recursive: bool = True
    ) -> AsyncIterator[Change]: ...
    async def tar_in(
        self, sandbox_id: str, path: str, data: AsyncIterable[bytes], *, flush: bool = True
    ) -> TarSummary: ...
    def tar_out(self, sandbox_id: str, path: str) -> AsyncIterator[bytes]: ...


class WorkspacesTransport(Protocol):
    """The named workspaces of one server."""

    async def list(self) -> Sequence[Workspace]: ...
    async def get(self, name: str) -> Workspace: ...
    async def create(self, name: str, *, size_mb: float | None = None) -> Workspace: ...
    async def copy(self, source: str, target: str) -> Workspace: ...
    async def resize(self, name: str, size_mb: float) -> Workspace: ...
    async def delete(self, name: str) -> None: ...


class SecretsTransport(Protocol):
    """The secrets of one server."""

    async def set(self, request: SecretRequest) -> Secret: ...
    async def list(self) -> Sequence[Secret]: ...
    async def remove(self, name: str) -> None: ...


class NetworkTransport(Protocol):
    """The network of the sandboxes of one server."""

    async def status(self, sandbox_id: str) -> NetworkStatus: ...
    async def log(self, sandbox_id: str, *, since_seq: int = 0) -> Sequence[NetworkAttempt]: ...


class CodeTransport(Protocol):
    """The code contexts of the sandboxes of one server."""

    async def run(
        self, sandbox_id: str, request: CodeRequest, show: CodeReader | None = None
    ) -> CodeResult: ...
    async def create(self, sandbox_id: str, request: ContextRequest) -> CodeContext: ...
    async def list(self, sandbox_id: str) -> Sequence[CodeContext]: ...
    async def languages(self, sandbox_id: str) -> Sequence[str]: ...
    async def restart(self, sandbox_id: str, context: str) -> None: ...
    async def interrupt(self, sandbox_id: str, context: str) -> None: ...
    async def remove(self, sandbox_id: str, context: str) -> None: ...


class Transport(Protocol):
    """One server of sandboxes."""

    @property
    def network(self) -> NetworkTransport: ...
    @property
    def code(self) -> CodeTransport: ...
    @property
    def secrets(self) -> SecretsTransport: ...
    @property
    def workspaces(self) -> WorkspacesTransport: ...
    @property
    def files(self) -> FilesTransport: ...
    @property
    def images(self) -> Images: ...
    async def create(self, request: CreateRequest) -> Info: ...
    async def get(self, sandbox_id: str) -> Info: ...
    async def list(
        self, *, all: bool = False, all_tenants: bool = False, usage: bool = False
    ) -> Sequence[Info]: ...
    async def destroy(self, sandbox_id: str) -> None: ...
    async def update(self, sandbox_id: str, request: UpdateRequest) -> Info: ...
    async def pause(self, sandbox_id: str) -> Info: ...
    async def resume(self, sandbox_id: str) -> Info: ...
    async def reclaim(self, sandbox_id: str) -> int: ...
    async def usage(self, sandbox_id: str) -> Usage: ...
    async def stats(self, sandbox_id: str) -> Stats: ...
    async def processes(self, sandbox_id: str) -> Sequence[Process]: ...
    async def exec(self, sandbox_id: str, request: ExecRequest) -> ExecResult: ...
    def exec_stream(
        self, sandbox_id: str, request: ExecRequest
    ) -> AsyncIterator[Chunk | ExecResult]: ...
    async def exec_start(self, sandbox_id: str, request: ExecRequest) -> ExecResult: ...
    async def exec_get(self, sandbox_id: str, exec_id: str, *, wait_s: float = 0) -> ExecResult: ...
    def exec_output(
        self, sandbox_id: str, exec_id: str, *, since_seq: int = 0, follow: bool = False
    ) -> AsyncIterator[Chunk | ExecResult]: ...
    async def exec_signal(self, sandbox_id: str, exec_id: str, signal: int) -> None: ...
    async def shell_close(self, sandbox_id: str, name: str) -> None: ...
    async def exec_stdin(
        self, sandbox_id: str, exec_id: str, data: bytes, *, close: bool = False
    ) -> None: ...
    async def execs(self, sandbox_id: str) -> Sequence[ExecPast]: ...
    def terminal(
        self,
        sandbox_id: str,
        *,
        command: tuple[str, ...] | None = None,
        rows: int = 24,
        cols: int = 80,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> AbstractAsyncContextManager[TerminalTransport]: ...
    def connect(self, sandbox_id: str, port: int) -> AbstractAsyncContextManager[PortTransport]: ...
    async def run(self, request: RunRequest, *, show: ChunkReader | None = None) -> RunResult: ...
    async def probe(self, backend: str | None = None) -> Readiness: ...
    async def tiers(self, *, measure: bool = True) -> Sequence[Tier]: ...
    async def backends(self) -> Sequence[BackendReport]: ...
    async def sweep(self) -> Swept: ...
    async def aclose(self) -> None: ...
