"""Failing responses as the errors they were in the daemon. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from sandkasten import errors
from sandkasten.errors import SandkastenError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandkasten.errors import Detail


def _kinds(kind: type[SandkastenError]) -> Iterator[type[SandkastenError]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _kinds(subclass)


# Where a family and one of its members share a code, the member is meant.
BY_CODE: Final[dict[str, type[SandkastenError]]] = {
    kind.code: kind for kind in _kinds(SandkastenError) if kind.__module__ == errors.__name__
}
_BY_STATUS: Final[dict[int, type[SandkastenError]]] = {
    401: errors.Unauthorized,
    403: errors.PolicyDenied,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.SessionExpired,
    413: errors.PayloadTooLarge,
    429: errors.QuotaExceeded,
    502: errors.BackendUnavailable,
    503: errors.BackendUnavailable,
    504: errors.BackendUnavailable,
    507: errors.QuotaExceeded,
}
_RAW_KEY_HINT: Final = "send Authorization:"
# More of a foreign error page than this is useless.
_SHOWN: Final = 200


def error_of(status: int, raw: bytes) -> SandkastenError:
    """Return the error of a failing response; a body that is not ours (a proxy's) is quoted."""
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("code", body.get("error_code")), str):
        kind = _kind_of(status)
        text = raw[:_SHOWN].decode("utf-8", "replace").strip()
        return kind(
            f"the server answered with status {status} without an error of Sandkasten: {text!r}",
            hint="check that this is the URL of a Sandkasten daemon and not of a proxy",
            http_status=status,
        )
    return body_error(body, status)


def body_error(body: dict[str, Any], status: int = 500) -> SandkastenError:
    """Return the error of an error body."""
    code = body.get("code", body.get("error_code"))
    kind = BY_CODE.get(code) if isinstance(code, str) else None
    error = (kind or _kind_of(status))(
        str(body.get("message") or body.get("error") or "the daemon gave no reason"),
        hint=str(body.get("hint") or ""),
    )
    details: dict[str, Detail] = {}
    sent = body.get("details")
    if isinstance(sent, dict):
        details.update({str(name): _plain(value) for name, value in sent.items()})
    if kind is None and isinstance(code, str):
        details["code"] = code
    if isinstance(error, errors.InternalError | errors.BackendError) and body.get("request_id"):
        # The daemon's log has more under it.
        details["request_id"] = str(body["request_id"])
    error.details = details
    if isinstance(error, errors.Unauthorized) and error.hint.startswith(_RAW_KEY_HINT):
        # That is for programs that speak HTTP themselves.
        error.hint = "set SANDKASTEN_API_KEY to a key of this daemon, or pass it as api_key"
    return error


def _kind_of(status: int) -> type[SandkastenError]:
    kind = _BY_STATUS.get(status)
    if kind is not None:
        return kind
    return errors.InvalidRequest if 400 <= status < 500 else errors.InternalError


def _plain(value: object) -> Detail:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list):
        return [str(item) for item in value]
    return json.dumps(value)
