"""The Connect protocol with JSON: envelopes of a stream, and errors. Pure.

A stream is a sequence of envelopes: one byte of flags, four bytes of length (big endian), and a
JSON object. The last one of a response has the flag 2 and holds `{}` or an error.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Final

from sandkasten import errors
from sandkasten.errors import InvalidRequest, PayloadTooLarge, SandkastenError

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAM: Final = "application/connect+json"
_HEAD: Final = struct.Struct(">BI")
_COMPRESSED: Final = 1
_END: Final = 2

# The first class that matches counts, so subclasses come before their base.
_CODES: Final[tuple[tuple[type[SandkastenError], str], ...]] = (
    (errors.Unauthorized, "unauthenticated"),
    (errors.PolicyDenied, "permission_denied"),
    (errors.FilePermission, "permission_denied"),
    (errors.FileExists, "already_exists"),
    (errors.NotADirectory, "invalid_argument"),
    (errors.IsADirectory, "invalid_argument"),
    (errors.NotRegular, "invalid_argument"),
    (errors.NotFound, "not_found"),
    (errors.PayloadTooLarge, "resource_exhausted"),
    (errors.QuotaExceeded, "resource_exhausted"),
    (errors.UnsupportedByBackend, "unimplemented"),
    # The connection to a sandbox ends with it. The SDKs then ask whether it is still there; after
    # `canceled` they would not.
    (errors.Cancelled, "unavailable"),
    (errors.CommandTimeout, "deadline_exceeded"),
    (errors.CommandNotExecutable, "invalid_argument"),
    (errors.FileError, "failed_precondition"),
    (errors.Conflict, "failed_precondition"),
    (errors.RequestError, "invalid_argument"),
    (errors.SandboxLost, "unavailable"),
    (errors.Busy, "unavailable"),
    (errors.BackendError, "unavailable"),
)
_STATUS: Final = {
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}


def envelope(value: object, *, flags: int = 0) -> bytes:
    """Return one message of a stream."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return _HEAD.pack(flags, len(body)) + body


def end_of_stream(error: dict[str, object] | None = None) -> bytes:
    """Return the last envelope of a response."""
    return envelope({} if error is None else {"error": error}, flags=_END)


def error_fields(error: SandkastenError) -> dict[str, object]:
    """Return an error as Connect writes it: the code, and the message with its hint."""
    return {"code": error_code(error), "message": full_message(error)}


def error_code(error: SandkastenError) -> str:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return "internal"


def error_status(error: SandkastenError) -> int:
    """Return the HTTP status of a failed unary call."""
    return _STATUS[error_code(error)]


def full_message(error: SandkastenError) -> str:
    """Return the message and the hint in one string: the protocol has no field for a hint."""
    return f"{error.message} ({error.hint})" if error.hint else error.message


class Envelopes:
    """Decodes the messages of a streamed request from pieces of any size.

    The length of a message is checked before its bytes are kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self._ended = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the messages that are complete now, still as JSON."""
        self._kept += piece
        while len(self._kept) >= _HEAD.size:
            if self._ended:
                raise InvalidRequest(
                    "the request continues after its end", hint="send the last envelope last"
                )
            flags, size = _HEAD.unpack_from(self._kept)
            if flags & _COMPRESSED:
                raise InvalidRequest(
                    "compressed messages are not supported", hint="send them without compression"
                )
            if size > self._max_bytes:
                raise PayloadTooLarge(
                    f"a message of {size} bytes is too large",
                    hint=f"at most {self._max_bytes} bytes; upload a file instead",
                    limit=self._max_bytes,
                )
            end = _HEAD.size + size
            if len(self._kept) < end:
                break
            message = bytes(self._kept[_HEAD.size : end])
            del self._kept[:end]
            if flags & _END:
                self._ended = True
            else:
                yield message

    def finish(self) -> None:
        """Raise InvalidRequest if the stream ended within a message."""
        if self._kept:
            raise InvalidRequest(
                "the request ended within a message", hint="send the whole envelope"
            )


def only_message(body: bytes, max_bytes: int) -> bytes:
    """Return the one message of a server stream's request.

    Reading ends at a second one: a body of 16 MB can hold millions of empty messages.
    """
    reader = Envelopes(max_bytes)
    content: bytes | None = None
    for message in reader.feed(body):
        if content is not None:
            raise InvalidRequest(
                "the request must have one message, got more", hint="send one envelope"
            )
        content = message
    reader.finish()
    if content is None:
        raise InvalidRequest("the request must have one message, got 0", hint="send one envelope")
    return content
