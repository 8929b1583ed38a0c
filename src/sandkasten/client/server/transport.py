"""What the client needs from whatever serves it, as Protocols. No behaviour lives here.

The engine in this process has this shape; anything else that has it can stand in its place.
Only classes of `errors` leave an implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.commands.exec_values import Chunk, ExecRequest, ExecResult
    from sandkasten.model.files.file_entries import (
        Change,
        FileContent,
        FileEntry,
        Listing,
        TarSummary,
    )
    from sandkasten.model.images.image_info import (
        ArchiveFormat,
        BuiltImage,
        CollectedImages,
        Exported,
        ImageInfo,
        ImageProgress,
        ImageUsage,
        RemovedImage,
    )
    from sandkasten.model.sandbox.oneshot_values import RunRequest, RunResult
    from sandkasten.model.sandbox.readiness import Readiness, Tier
    from sandkasten.model.sandbox.sandbox_requests import (
        CreateRequest,
        Info,
        Process,
        Stats,
        Swept,
        UpdateRequest,
    )
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten.model.sandbox.workspace import Workspace


class TerminalTransport(Protocol):
    """A live terminal. Iterating gives what it prints and ends when its program does."""

    @property
    def exec_id(self) -> str: ...
    async def send(self, data: bytes) -> None: ...
    async def resize(self, rows: int, cols: int) -> None: ...
    async def signal(self, signal: int) -> None: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def result(self) -> ExecResult: ...


class FilesTransport(Protocol):
    """The file verbs of one server; every path is the sandbox's own."""

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
        self, sandbox_id: str, path: str, data: AsyncIterable[bytes]
    ) -> TarSummary: ...
    def tar_out(self, sandbox_id: str, path: str) -> AsyncIterator[bytes]: ...


class ImagesTransport(Protocol):
    """The images of one server; paths are that server's."""

    async def list(self) -> Sequence[ImageInfo]: ...
    async def inspect(self, name: str) -> ImageInfo: ...
    async def import_archive(
        self,
        path: str,
        *,
        name: str | None = None,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Sequence[ImageInfo]: ...
    async def export(
        self,
        name: str,
        path: str,
        *,
        format: ArchiveFormat = "docker",
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Exported: ...
    async def pull(
        self,
        name: str,
        *,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> ImageInfo: ...
    async def build_debian(
        self,
        name: str,
        suite: str,
        *,
        include: Sequence[str] = (),
        variant: str = "minbase",
        mirror: str | None = None,
        refresh: bool = False,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage: ...
    async def build_steps(
        self,
        name: str,
        file: str,
        *,
        refresh: bool = False,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage: ...
    async def tag(self, name: str, new: str) -> ImageInfo: ...
    async def remove(self, name: str) -> RemovedImage: ...
    async def collect(self) -> CollectedImages: ...
    async def usage(self) -> ImageUsage: ...


class WorkspacesTransport(Protocol):
    """The named workspaces of one server."""

    async def list(self) -> Sequence[Workspace]: ...
    async def get(self, name: str) -> Workspace: ...
    async def create(self, name: str, *, size_mb: float | None = None) -> Workspace: ...
    async def copy(self, source: str, target: str) -> Workspace: ...
    async def resize(self, name: str, size_mb: float) -> Workspace: ...
    async def delete(self, name: str) -> None: ...


class Transport(Protocol):
    """One server of sandboxes."""

    @property
    def workspaces(self) -> WorkspacesTransport: ...
    @property
    def files(self) -> FilesTransport: ...
    @property
    def images(self) -> ImagesTransport: ...
    async def create(self, request: CreateRequest) -> Info: ...
    async def get(self, sandbox_id: str) -> Info: ...
    async def list(self, *, all: bool = False) -> Sequence[Info]: ...
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
    async def exec_stdin(
        self, sandbox_id: str, exec_id: str, data: bytes, *, close: bool = False
    ) -> None: ...
    async def execs(self, sandbox_id: str) -> Sequence[ExecResult]: ...
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
    async def run(self, request: RunRequest) -> RunResult: ...
    async def probe(self, backend: str | None = None) -> Readiness: ...
    async def tiers(self, *, measure: bool = True) -> Sequence[Tier]: ...
    async def sweep(self) -> Swept: ...
    async def aclose(self) -> None: ...
