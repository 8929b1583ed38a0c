"""Failures of Modal's SDK as our errors. Imports the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from modal import exception
from modal_proto.api_pb2 import RPCRetryPolicy

from sandkasten.errors import ImageNotFound, InvalidRequest
from sandkasten.model.spelling import one_line
from sandkasten_cloud import provider_errors
from sandkasten_cloud.modal.modal_options import VARIABLES

if TYPE_CHECKING:
    from sandkasten.errors import SandkastenError

NAME: Final = "modal"
TITLE: Final = "Modal"
CALL_ERRORS: Final = (
    exception.Error,
    GRPCError,
    StreamTerminatedError,
    ProtocolError,
    OSError,
    TimeoutError,
    # How it fails at an answer that is not a message, or is compressed.
    DecodeError,
    RuntimeError,
)
"""What a call of the SDK raises when it fails."""


def needs_new_session(exc: BaseException) -> bool:
    """Return whether another session may succeed: a token has ended, or another request has closed
    this one for that.
    """
    return isinstance(exc, exception.AuthError | exception.ClientClosed)


def translated(exc: BaseException, image: str = "") -> SandkastenError:
    """Return the error for a failed call. `image`: the one that a machine was to have."""
    message = one_line(str(exc)) or type(exc).__name__
    if isinstance(exc, exception.AuthError | exception.PermissionDeniedError):
        return provider_errors.unauthorized(NAME, TITLE, VARIABLES, message)
    if isinstance(exc, exception.ResourceExhaustedError):
        return provider_errors.rate_limited(NAME, TITLE, _retry_after_s(exc), message)
    if isinstance(exc, exception.ImageBuildError):
        return ImageNotFound(
            f"Modal cannot make image {image}: {message}",
            hint="name an image for linux/amd64 in a registry that Modal can read",
            image=image,
        )
    # The SDK reports the same for a request and for an answer; only a create has a choice of
    # values.
    if isinstance(exc, exception.InvalidError) and image:
        return InvalidRequest(
            f"Modal does not accept the sandbox: {message}",
            hint="correct the image, the limits or backends.modal.region",
        )
    return provider_errors.outage(NAME, TITLE, message)


def _retry_after_s(exc: exception.ResourceExhaustedError) -> float | None:
    for detail in getattr(exc, "_grpc_details", None) or ():
        if isinstance(detail, RPCRetryPolicy):
            return float(detail.retry_after_secs)
    return None
