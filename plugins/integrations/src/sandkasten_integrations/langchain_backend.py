"""Sandboxes as a backend of LangChain's deep agents: `create_deep_agent(backend=…)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten import (
    FileError,
    FileNotFound,
    FilePermission,
    InvalidRequest,
    IsADirectory,
    NotADirectory,
    PayloadTooLarge,
    PolicyDenied,
)
from sandkasten_integrations.framework_import import framework_import

with framework_import("deepagents", "langchain"):
    from deepagents.backends.protocol import (
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
    )
    from deepagents.backends.sandbox import BaseSandbox

if TYPE_CHECKING:
    from sandkasten import Sandbox

# Operations of deepagents print whole files as JSON. This much needs no setting of the operator.
MAX_OUTPUT_BYTES: Final = 8 * 1024 * 1024
# What `timeout` of coreutils ends with.
TIMED_OUT: Final = 124
INVALID_PATH: Final = "invalid_path"
FILE_ERRORS: Final = (FileError, FileNotFound, InvalidRequest, PayloadTooLarge, PolicyDenied)


class SandkastenBackend(BaseSandbox):
    """Give an agent the files and commands of one sandbox. The caller closes the sandbox.

    Each command is a new process in the workspace, so an agent can run several at once. The other
    operations of a backend are derived from these by deepagents; they require python3 inside.
    """

    def __init__(self, box: Sandbox) -> None:
        self.box = box

    @property
    def id(self) -> str:
        return self.box.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        try:
            result = self.box.exec(
                command,
                stateful=False,
                timeout_seconds=timeout,
                max_output_bytes=MAX_OUTPUT_BYTES,
            )
        except (InvalidRequest, PayloadTooLarge) as exc:
            # The command itself cannot be run as it is; a model can write another one.
            return ExecuteResponse(output=str(exc), exit_code=None)
        if result.timed_out:
            output = f"{result.output}\n[timed out after {result.duration_ms / 1000:.0f} s]"
            return ExecuteResponse(output, TIMED_OUT, result.truncated)
        return ExecuteResponse(result.output, result.exit_status, result.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, self._upload(path, data)) for path, data in files]

    def _upload(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return INVALID_PATH
        try:
            self.box.write(path, data)
        except FILE_ERRORS as exc:
            return _word(exc)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path, error=INVALID_PATH)
        try:
            return FileDownloadResponse(path, content=bytes(self.box.read(path)))
        except FILE_ERRORS as exc:
            return FileDownloadResponse(path, error=_word(exc))


def _word(error: Exception) -> str:
    """Return the word by which models know an error, or its message."""
    match error:
        case FileNotFound():
            return "file_not_found"
        case FilePermission() | PolicyDenied():
            return "permission_denied"
        case IsADirectory():
            return "is_directory"
        case NotADirectory() | InvalidRequest():
            return INVALID_PATH
    return str(error)
