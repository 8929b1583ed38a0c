"""Errors as HTTP responses: one body for every failure, and one status for each class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from sandkasten import errors
from sandkasten.disk.os_errors import is_exhausted, is_full, no_space
from sandkasten_server.api.response.json_response import as_json

if TYPE_CHECKING:
    from sandkasten.errors import SandkastenError


class CutShort(Exception):
    """Makes the server close the connection in the middle of a response.

    The line of the request in the log has the reason; the server's own would only add a trace, as
    often as a server inside a sandbox wants.
    """

    is_logged = True


STATUS: Final[dict[type[SandkastenError], int]] = {
    errors.InvalidRequest: 400,
    errors.InvalidImage: 400,
    errors.ImageNotFound: 404,
    errors.RequestError: 400,
    errors.PayloadTooLarge: 413,
    errors.PolicyDenied: 403,
    errors.UntrustedImage: 403,
    errors.Unauthorized: 401,
    errors.Conflict: 409,
    errors.IdempotencyKeyReused: 409,
    errors.UnsupportedByBackend: 422,
    errors.InvalidConfiguration: 400,
    errors.InvalidAgent: 400,
    errors.InvalidWorkflow: 400,
    errors.NotFound: 404,
    errors.SessionNotFound: 404,
    errors.SessionExpired: 410,
    errors.ExecNotFound: 404,
    errors.FileNotFound: 404,
    errors.CommandNotFound: 404,
    errors.ShellNotFound: 404,
    errors.ContextNotFound: 404,
    errors.KernelNotFound: 404,
    errors.WorkspaceNotFound: 404,
    errors.SnapshotNotFound: 404,
    errors.RunNotFound: 404,
    errors.AgentNotFound: 404,
    errors.WorkflowNotFound: 404,
    errors.FileError: 409,
    errors.FileExists: 409,
    errors.NotRegular: 409,
    errors.NotADirectory: 409,
    errors.IsADirectory: 409,
    errors.DirectoryNotEmpty: 409,
    errors.FilePermission: 403,
    errors.FileTrouble: 409,
    errors.QuotaExceeded: 507,
    errors.WorkspaceDamaged: 409,
    errors.SnapshotDamaged: 409,
    errors.StoreUnusable: 503,
    errors.CommandTimeout: 504,
    errors.CommandNotExecutable: 422,
    errors.ConnectionRefused: 502,
    errors.Cancelled: 409,
    errors.Busy: 503,
    errors.KernelFailed: 502,
    errors.RegistryUnavailable: 502,
    errors.BuildFailed: 422,
    errors.RunFailed: 422,
    errors.RunLimitReached: 422,
    errors.ModelUnavailable: 502,
    errors.ProvisioningFailed: 422,
    errors.BackendError: 503,
    errors.BackendUnavailable: 503,
    errors.IsolationRefused: 503,
    errors.SandboxLost: 410,
    errors.InternalError: 500,
    errors.ProtocolViolation: 502,
}
MOST_CHARACTERS: Final = 16_384
"""In a message, and in a string of the details, which may repeat what a client sent: errors are
encoded at once, and held in memory for a client that does not read."""

# How many of something a tenant may have, or how fast it may ask: not a matter of space.
_COUNTED: Final = frozenset(
    {
        "sessions", "rate", "memory", "connections", "runs",
        "network_connections", "network_bandwidth_bps", "network_bytes", "max_sandboxes",
    }
)  # fmt: skip


def status_of(error: SandkastenError) -> int:
    if "http_status" in error.details:
        return int(error.details["http_status"])  # type: ignore[arg-type]
    if isinstance(error, errors.QuotaExceeded) and error.details.get("quota") in _COUNTED:
        return 429
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500


def body_of(error: SandkastenError, request_id: str) -> dict[str, object]:
    details = {k: _cut(v) for k, v in error.details.items() if k != "http_status"}
    message = error.message[:MOST_CHARACTERS]
    return {
        "error_code": error.code,
        "error": message,
        "code": error.code,
        "message": message,
        "hint": error.hint[:MOST_CHARACTERS],
        "retryable": error.retryable,
        "details": details,
        "request_id": request_id,
    }


def _cut(value: object) -> object:
    return value[:MOST_CHARACTERS] if isinstance(value, str) else value


def error_headers(error: SandkastenError, status: int) -> dict[str, str]:
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="sandkasten"'
    if status == 408:
        # What it still might send is not worth waiting for.
        headers["Connection"] = "close"
    if status in (429, 503):
        headers["Retry-After"] = str(error.details.get("retry_after_s", 1))
    if status == 405:
        headers["Allow"] = ", ".join(error.details.get("allow") or ())  # type: ignore[arg-type]
    return headers


def problem(error: SandkastenError, request_id: str) -> Response:
    status = status_of(error)
    return Response(
        as_json(body_of(error, request_id)),
        status_code=status,
        media_type="application/json",
        headers=error_headers(error, status),
    )


def unforeseen(exc: Exception) -> SandkastenError:
    """Return the error for an unexpected exception, without its text, which may hold user data."""
    if isinstance(exc, OSError) and is_exhausted(exc):
        return errors.Busy("the daemon is out of file descriptors or memory", hint="try again")
    if isinstance(exc, OSError) and is_full(exc):
        return no_space(f"the daemon could not write: {exc.strerror}")
    return errors.InternalError(
        f"the daemon failed unexpectedly ({type(exc).__name__})",
        hint="search the daemon's log for the id of this request",
    )
