"""Access to servers inside a sandbox, over HTTP and WebSocket.

The server is untrusted. It never sees the client's key, cannot set cookies on our origin, and its
pages run in an origin of their own (`Content-Security-Policy: sandbox`), so they cannot call the
daemon on behalf of the user who views them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.websockets import WebSocket

from sandkasten.errors import (
    ConnectionRefused,
    InvalidRequest,
    ProtocolViolation,
    SessionExpired,
    SessionNotFound,
)
from sandkasten_server.api.proxy.port_proxy import Target, forward
from sandkasten_server.api.proxy.port_proxy_ws import tunnel
from sandkasten_server.api.route import Handler, Method, Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten_server.api.request.http_call import Call


async def proxy(call: Call) -> Response:
    the_id, target = await call.session(), _target(call)
    return await forward(call, the_id, target)


async def websocket(call: Call) -> None:
    the_id, target = await call.session(), _target(call)
    assert isinstance(call.connection, WebSocket)
    await tunnel(call, call.connection, the_id, target)


def _target(call: Call) -> Target:
    text = call.path("port")
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65_535):
        raise InvalidRequest("a port must be a number from 1 to 65535", hint="…/ports/8000/")
    prefix = f"/v1/sessions/{call.path('id')}/ports/{text}"
    raw: bytes = call.connection.scope["raw_path"]
    rest = _behind(prefix, raw.split(b"?", 1)[0].split(b"#", 1)[0])
    query: bytes = call.connection.scope["query_string"].split(b"#", 1)[0]
    path = rest + (b"?" + query if query else b"")
    return Target(int(text), path.decode("latin-1"), prefix)


def _behind(prefix: str, raw: bytes) -> bytes:
    """Return what follows the prefix, unchanged; the prefix may be percent-encoded."""
    at = 0
    for _ in prefix:
        at += 3 if raw[at : at + 1] == b"%" else 1
    rest = raw[at:]
    slash = 3 if rest[:3].lower() == b"%2f" else rest.startswith(b"/")
    return b"/" + rest[slash:]


_ERRORS = (SessionNotFound, SessionExpired, ConnectionRefused, ProtocolViolation)
_TEXT = (__doc__ or "").strip()

_KINDS: tuple[tuple[Method, Handler, str], ...] = (
    ("ANY", proxy, "Ask a server inside"),
    ("WS", websocket, "A WebSocket of a server inside"),
)

ROUTES = tuple(
    Route(
        method,
        path,
        run,
        summary,
        "ports",
        takes=("*/*",),
        reads_body=method == "ANY",
        body_required=False,
        gives=("*/*",),
        errors=_ERRORS,
        description=_TEXT,
    )
    for path in ("/v1/sessions/{id}/ports/{port}/{rest:path}", "/v1/sessions/{id}/ports/{port}")
    for method, run, summary in _KINDS
)
