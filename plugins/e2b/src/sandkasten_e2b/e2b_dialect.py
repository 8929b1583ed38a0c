"""How requests of E2B's SDKs authenticate, and the errors that they understand.

The control plane takes a key in `X-API-KEY` and answers `{code, message}`. Requests to one sandbox
have its access token instead, and calls of the Connect protocol have its errors. A sandbox that is
gone or paused answers 502 there, with the words by which the SDKs recognise it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from sandkasten.errors import (
    Cancelled,
    ImageNotFound,
    InvalidImage,
    SandboxLost,
    SandkastenError,
    SessionExpired,
    SessionNotFound,
    Unauthorized,
)
from sandkasten.model.access.api_keys import key_of_e2b
from sandkasten_e2b.connect_codec import (
    STREAM,
    end_of_stream,
    error_fields,
    error_status,
    full_message,
)
from sandkasten_runtime.engine.handles import is_paused
from sandkasten_server.api.error_responses import status_of
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Dialect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_server.api.request.authentication import Doorkeeper

_GONE: Final = (SessionNotFound, SessionExpired)
_NOT_FOUND: Final = "The sandbox was not found"


def _with_key(doorkeeper: Doorkeeper, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with the key of `X-API-KEY` as a bearer.

    Clients of E2B may refuse a key of another form than theirs, so a key has that spelling too.
    Where no key is needed the SDK still sends one, so any value is accepted there.
    """
    forwarded = {name: value for name, value in headers.items() if name != "authorization"}
    if "x-api-key" in headers and not doorkeeper.is_open:
        forwarded["authorization"] = f"Bearer {key_of_e2b(headers['x-api-key'])}"
    return forwarded


def _without_user(_: Doorkeeper, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers without `Authorization`, which names a user of the sandbox here."""
    return {name: value for name, value in headers.items() if name != "authorization"}


def _problem(error: SandkastenError, _: str) -> Response:
    status = status_of(error)
    if isinstance(error, (*_GONE, ImageNotFound, InvalidImage)):
        # E2B does not distinguish an ended sandbox from an unknown one, and a template has no bad
        # name.
        status = 404
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = str(error.details.get("retry_after_s", 1))
    return answer({"code": status, "message": full_message(error)}, status, headers)


def control_error(error: SandkastenError) -> dict[str, object]:
    """Return an error as a part of an answer of the control plane."""
    return {"code": status_of(error), "message": full_message(error)}


def is_gone(error: SandkastenError) -> bool:
    """Return whether the sandbox of a request ended or was paused while it was served."""
    return isinstance(error, (*_GONE, SandboxLost, Cancelled)) or is_paused(error)


def gone_port(label: str) -> Response:
    """Return what E2B's proxy answers for a port of a sandbox that does not exist."""
    return answer({"sandboxId": label, "message": _NOT_FOUND, "code": 502}, 502)


def _gone(error: SandkastenError) -> Response | None:
    """Return what E2B's proxy answers for a sandbox that does not run."""
    if not isinstance(error, _GONE) and not is_paused(error):
        return None
    return answer({"code": 502, "message": f"{_NOT_FOUND}: {full_message(error)}"}, 502)


def _file_problem(error: SandkastenError, request_id: str) -> Response:
    if isinstance(error, Unauthorized):
        # Programs compare these messages.
        return answer({"code": 401, "message": error.message}, 401)
    return _gone(error) or _problem(error, request_id)


def _call_problem(error: SandkastenError, _: str) -> Response:
    return _gone(error) or answer(error_fields(error), error_status(error))


def _stream_problem(error: SandkastenError, _: str) -> Response:
    response = _gone(error)
    if response is not None:
        return response
    return Response(end_of_stream(error_fields(error)), media_type=STREAM)


CONTROL: Final = Dialect(_with_key, _problem)
FILES: Final = Dialect(_without_user, _file_problem)
CALLS: Final = Dialect(_without_user, _call_problem)
STREAMS: Final = Dialect(_without_user, _stream_problem)
