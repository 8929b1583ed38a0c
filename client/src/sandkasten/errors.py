"""Every failure Sandkasten raises on purpose, one class and one stable code each.

This module knows nothing of HTTP, of backends or of processes. A command that ran and
failed is a result, never one of these; a command that could not be run is always one.
Five of them are also the exceptions that Python raises for local files, so `except
FileNotFoundError` works for files in a sandbox too.

SandkastenError
├── RequestError                the request cannot be fulfilled
│   ├── InvalidRequest          INVALID_REQUEST
│   ├── InvalidImage            INVALID_IMAGE
│   │   └── ImageNotFound       IMAGE_NOT_FOUND
│   ├── PayloadTooLarge         PAYLOAD_TOO_LARGE
│   ├── PolicyDenied            FORBIDDEN
│   │   └── UntrustedImage      UNTRUSTED_IMAGE
│   ├── Unauthorized            UNAUTHORIZED
│   ├── Conflict                CONFLICT
│   │   └── IdempotencyKeyReused IDEMPOTENCY_KEY_REUSED
│   ├── UnsupportedByBackend    UNSUPPORTED_BY_BACKEND
│   ├── InvalidConfiguration    INVALID_CONFIGURATION
│   ├── InvalidAgent            INVALID_AGENT
│   └── InvalidWorkflow         INVALID_WORKFLOW
├── NotFound                    a named object does not exist
│   ├── SessionNotFound         SESSION_NOT_FOUND
│   ├── SessionExpired          SESSION_EXPIRED
│   ├── ExecNotFound            EXEC_NOT_FOUND
│   ├── FileNotFound            FILE_NOT_FOUND (also FileNotFoundError)
│   ├── CommandNotFound         COMMAND_NOT_FOUND
│   ├── ShellNotFound           SHELL_NOT_FOUND
│   ├── ContextNotFound         CONTEXT_NOT_FOUND
│   ├── KernelNotFound          KERNEL_NOT_FOUND
│   ├── WorkspaceNotFound       WORKSPACE_NOT_FOUND
│   ├── SnapshotNotFound        SNAPSHOT_NOT_FOUND
│   ├── RunNotFound             RUN_NOT_FOUND
│   ├── AgentNotFound           AGENT_NOT_FOUND
│   └── WorkflowNotFound        WORKFLOW_NOT_FOUND
├── FileError                   a file verb that the sandbox's own kernel refused
│   ├── FileExists              FILE_EXISTS (also FileExistsError)
│   ├── NotRegular              NOT_REGULAR
│   ├── NotADirectory           NOT_A_DIRECTORY (also NotADirectoryError)
│   ├── IsADirectory            IS_A_DIRECTORY (also IsADirectoryError)
│   ├── DirectoryNotEmpty       DIRECTORY_NOT_EMPTY
│   ├── FilePermission          FILE_PERMISSION (also PermissionError)
│   └── FileTrouble             FILE_TROUBLE
├── QuotaExceeded               QUOTA_EXCEEDED
├── WorkspaceDamaged            WORKSPACE_DAMAGED
├── SnapshotDamaged             SNAPSHOT_DAMAGED
├── StoreUnusable               STORE_UNUSABLE (the daemon's database)
├── CommandTimeout              COMMAND_TIMEOUT (only if a timeout was requested to be an error)
├── CommandNotExecutable        COMMAND_NOT_EXECUTABLE
├── ConnectionRefused           CONNECTION_REFUSED (a port inside the sandbox)
├── Cancelled                   CANCELLED
├── Busy                        BUSY
├── KernelFailed                KERNEL_FAILED (the kernel of a context)
├── RegistryUnavailable         REGISTRY_UNAVAILABLE
├── BuildFailed                 BUILD_FAILED (an image could not be built from its recipe)
├── RunFailed                   RUN_FAILED (of an agent or a workflow)
│   └── RunLimitReached         RUN_LIMIT_REACHED
├── ModelUnavailable            MODEL_UNAVAILABLE
├── ProvisioningFailed          PROVISIONING_FAILED (packages could not be installed)
├── BackendError                isolation is not available or was lost
│   ├── BackendUnavailable      BACKEND_UNAVAILABLE
│   ├── IsolationRefused        ISOLATION_REFUSED
│   └── SandboxLost             SANDBOX_LOST
└── InternalError               INTERNAL_ERROR
    └── ProtocolViolation       PROTOCOL_VIOLATION (a sandbox sent invalid data)
"""

from __future__ import annotations

import errno as numbers
import os
from typing import ClassVar

Detail = str | int | float | bool | None | list[str]


class SandkastenError(Exception):
    """`message` says what was attempted and what stopped it; `hint`, what to do."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "", **details: Detail) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Detail] = details

    def __str__(self) -> str:
        text = f"{self.message} (hint: {self.hint})" if self.hint else self.message
        # The caller did not name it: its settings and files may not be the caller's.
        daemon = self.details.get("daemon")
        return text if daemon is None else f"{text} (answered by the daemon at {daemon})"

    @property
    def operator_message(self) -> str:
        """The message and its notes, which logs and `doctor` show and no response does."""
        return "; ".join((self.message, *getattr(self, "__notes__", ())))


class _SystemError:
    """The attributes of an OSError, from the class and from `details`, which HTTP and pickle keep.

    Code that catches OSError around a call of Sandkasten catches these errors too: let
    SandkastenError pass first.
    """

    errno: int
    details: dict[str, Detail]

    @property
    def strerror(self) -> str:
        return os.strerror(self.errno)

    @property
    def filename(self) -> str | None:
        """Return the path of the request, if it is known."""
        path = self.details.get("path")
        return path if isinstance(path, str) else None


class RequestError(SandkastenError):
    code = "INVALID_REQUEST"


class InvalidRequest(RequestError):
    code = "INVALID_REQUEST"


class InvalidImage(RequestError):
    code = "INVALID_IMAGE"


class ImageNotFound(InvalidImage):
    """The name is valid, and neither the store nor the registry that was asked has the image."""

    code = "IMAGE_NOT_FOUND"


class PayloadTooLarge(RequestError):
    code = "PAYLOAD_TOO_LARGE"


class PolicyDenied(RequestError):
    code = "FORBIDDEN"


class UntrustedImage(PolicyDenied):
    """The image has no signature that `policy.images.signatures` accepts."""

    code = "UNTRUSTED_IMAGE"


class Unauthorized(RequestError):
    code = "UNAUTHORIZED"


class Conflict(RequestError):
    code = "CONFLICT"


class IdempotencyKeyReused(Conflict):
    code = "IDEMPOTENCY_KEY_REUSED"


class UnsupportedByBackend(RequestError):
    code = "UNSUPPORTED_BY_BACKEND"


class InvalidConfiguration(RequestError):
    code = "INVALID_CONFIGURATION"


class InvalidAgent(RequestError):
    code = "INVALID_AGENT"


class InvalidWorkflow(RequestError):
    code = "INVALID_WORKFLOW"


class NotFound(SandkastenError):
    code = "NOT_FOUND"


class SessionNotFound(NotFound):
    code = "SESSION_NOT_FOUND"


class SessionExpired(NotFound):
    code = "SESSION_EXPIRED"


class ExecNotFound(NotFound):
    code = "EXEC_NOT_FOUND"


class FileNotFound(NotFound, _SystemError, FileNotFoundError):  # type: ignore[misc]
    errno = numbers.ENOENT
    code = "FILE_NOT_FOUND"


class CommandNotFound(NotFound):
    code = "COMMAND_NOT_FOUND"


class ShellNotFound(NotFound):
    code = "SHELL_NOT_FOUND"


class ContextNotFound(NotFound):
    code = "CONTEXT_NOT_FOUND"


class KernelNotFound(NotFound):
    code = "KERNEL_NOT_FOUND"


class WorkspaceNotFound(NotFound):
    code = "WORKSPACE_NOT_FOUND"


class SnapshotNotFound(NotFound):
    code = "SNAPSHOT_NOT_FOUND"


class RunNotFound(NotFound):
    code = "RUN_NOT_FOUND"


class AgentNotFound(NotFound):
    code = "AGENT_NOT_FOUND"


class WorkflowNotFound(NotFound):
    code = "WORKFLOW_NOT_FOUND"


class FileError(SandkastenError):
    code = "FILE_TROUBLE"


class FileExists(FileError, _SystemError, FileExistsError):  # type: ignore[misc]
    errno = numbers.EEXIST
    code = "FILE_EXISTS"


class NotRegular(FileError):
    code = "NOT_REGULAR"


class NotADirectory(FileError, _SystemError, NotADirectoryError):  # type: ignore[misc]
    errno = numbers.ENOTDIR
    code = "NOT_A_DIRECTORY"


class IsADirectory(FileError, _SystemError, IsADirectoryError):  # type: ignore[misc]
    errno = numbers.EISDIR
    code = "IS_A_DIRECTORY"


class DirectoryNotEmpty(FileError):
    code = "DIRECTORY_NOT_EMPTY"


class FilePermission(FileError, _SystemError, PermissionError):  # type: ignore[misc]
    errno = numbers.EACCES
    code = "FILE_PERMISSION"


class FileTrouble(FileError):
    code = "FILE_TROUBLE"


class QuotaExceeded(SandkastenError):
    code = "QUOTA_EXCEEDED"


class WorkspaceDamaged(SandkastenError):
    """A named workspace exists, but its metadata or its volume cannot be used as it is."""

    code = "WORKSPACE_DAMAGED"


class SnapshotDamaged(SandkastenError):
    """A snapshot exists, but its metadata or its files cannot be used as they are."""

    code = "SNAPSHOT_DAMAGED"


class StoreUnusable(SandkastenError):
    """The daemon's database is damaged, newer than this program, foreign, or open in another
    process.
    """

    code = "STORE_UNUSABLE"


class CommandTimeout(SandkastenError):
    code = "COMMAND_TIMEOUT"


class CommandNotExecutable(SandkastenError):
    code = "COMMAND_NOT_EXECUTABLE"


class ConnectionRefused(SandkastenError):
    code = "CONNECTION_REFUSED"
    retryable = True


class Cancelled(SandkastenError):
    code = "CANCELLED"


class Busy(SandkastenError):
    code = "BUSY"
    retryable = True


class KernelFailed(SandkastenError):
    """The kernel of a context did not start, did not answer or sent invalid data."""

    code = "KERNEL_FAILED"


class RegistryUnavailable(SandkastenError):
    code = "REGISTRY_UNAVAILABLE"
    retryable = True


class BuildFailed(SandkastenError):
    code = "BUILD_FAILED"


class RunFailed(SandkastenError):
    code = "RUN_FAILED"


class RunLimitReached(RunFailed):
    code = "RUN_LIMIT_REACHED"


class ModelUnavailable(SandkastenError):
    code = "MODEL_UNAVAILABLE"
    retryable = True


class ProvisioningFailed(SandkastenError):
    code = "PROVISIONING_FAILED"


class BackendError(SandkastenError):
    code = "BACKEND_UNAVAILABLE"


class BackendUnavailable(BackendError):
    code = "BACKEND_UNAVAILABLE"
    retryable = True


class IsolationRefused(BackendError):
    """The sandbox could be created, but not as isolated as required; so it was not created."""

    code = "ISOLATION_REFUSED"


class SandboxLost(BackendError):
    """The sandbox existed and no longer does (killed, out of memory, host restarted)."""

    code = "SANDBOX_LOST"


class InternalError(SandkastenError):
    code = "INTERNAL_ERROR"


class ProtocolViolation(InternalError):
    code = "PROTOCOL_VIOLATION"
