"""Links to previews, and plain TCP connections to servers inside a sandbox.

A preview is a port of a sandbox on an origin of its own, `{port}-{id}.localhost` or
`{port}-{id}.{previews.domain}`. It is private: its links are signed and expire. `public` opens it
to every client that reaches the daemon, until `ttl_seconds` have passed or the sandbox ends.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field
from starlette.websockets import WebSocket, WebSocketState

from sandkasten.errors import (
    ConnectionRefused,
    InvalidRequest,
    NotFound,
    PolicyDenied,
    QuotaExceeded,
    SandkastenError,
    SessionExpired,
    SessionNotFound,
)
from sandkasten.model.access.preview_links import MAX_TTL_S, PreviewTarget
from sandkasten_server.api.request.field_schemas import WHOLE
from sandkasten_server.api.request.request_guard import LOOPBACK, host_name
from sandkasten_server.api.request.socket_protocols import accept
from sandkasten_server.api.response.json_response import answer, moments
from sandkasten_server.api.route import Answer, Body, Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten_runtime.engine.commands.port_stream import PortStream
    from sandkasten_server.api.previews.preview_access import Previews
    from sandkasten_server.api.request.http_call import Call

_END: Final = "end"
_INTERNAL_ERROR: Final = 1011


class PreviewBody(Body):
    port: Annotated[int, Field(ge=1, le=65_535), WHOLE]
    public: bool | None = Field(
        None,
        description="true: open it to every client; false: make it private again; "
        "null: leave it as it is.",
    )
    ttl_seconds: float | None = Field(
        None,
        ge=1,
        le=MAX_TTL_S,
        description="How long the link works; default: 1 hour, or until the session ends if it is "
        "public.",
    )


class PreviewAnswer(Answer):
    url: str = Field(description="Open it in a browser. A private one contains a token.")
    port: int
    public: bool
    expires_at: str | None = Field(description="null: it works until the session ends.")
    expires_at_unix: float | None
    link_id: str | None = Field(description="Revokes the link; null if the port is public.")


class Revoked(Answer):
    ok: bool


async def make_link(call: Call) -> Response:
    the_id = await call.session()
    body = await call.body(PreviewBody)
    preview = await _previews(call).link(
        PreviewTarget(the_id, body.port),
        public=body.public,
        ttl_s=body.ttl_seconds,
        client_origin=_seen(call),
    )
    call.recorded |= {"port": str(preview.port), "public": str(preview.public).lower()}
    if preview.link_id is not None:
        call.recorded["link"] = preview.link_id
    fields = {
        "url": preview.url,
        "port": preview.port,
        "public": preview.public,
        "link_id": preview.link_id,
    }
    return answer({**fields, **moments(expires_at=preview.expires_at)}, 201)


async def revoke_link(call: Call) -> Response:
    call.recorded["revoked"] = call.path("link")
    await _previews(call).revoke(await call.session(), call.path("link"))
    return answer({"ok": True})


async def revoke_links(call: Call) -> Response:
    call.recorded["revoked"] = "all"
    await _previews(call).revoke(await call.session(), None)
    return answer({"ok": True})


def _previews(call: Call) -> Previews:
    if call.server.previews is None:
        raise NotFound("this server has no previews", hint="use sandkasten serve")
    return call.server.previews


def _seen(call: Call) -> tuple[str, int] | None:
    """Return the scheme and port by which a client on loopback reaches the daemon."""
    scope = call.connection.scope
    if (scope.get("server") or ("", None))[1] is None:
        return None
    host = call.connection.headers.get("host", "")
    if host_name(host) not in LOOPBACK:
        return None
    port = host.rpartition("]")[2].rpartition(":")[2]
    scheme = str(scope.get("scheme", "http"))
    return scheme, int(port) if port.isdigit() else (443 if scheme == "https" else 80)


async def tunnel(call: Call) -> None:
    text = call.path("port")
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65_535):
        raise InvalidRequest(
            "a port must be a number from 1 to 65535",
            hint="use a path such as /v1/sessions/ID/tunnels/8000",
        )
    the_id = await call.session()
    websocket = call.connection
    assert isinstance(websocket, WebSocket)
    async with call.engine.connect(the_id, int(text)) as stream:
        await accept(websocket)
        inward = asyncio.create_task(_inward(websocket, stream))
        outward = asyncio.create_task(_outward(websocket, stream))
        try:
            await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (inward, outward):
                task.cancel()
            ends = await asyncio.gather(inward, outward, return_exceptions=True)
        if websocket.client_state is not WebSocketState.CONNECTED:
            return
        failed = any(isinstance(end, SandkastenError) for end in ends)
        with suppress(RuntimeError):
            await websocket.close(_INTERNAL_ERROR if failed else 1000)


async def _inward(websocket: WebSocket, stream: PortStream) -> None:
    """Pass on bytes until the client leaves."""
    is_open = True
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        try:
            if message.get("bytes") is not None and is_open:
                await stream.send(message["bytes"])
            elif message.get("text") == _END and is_open:
                is_open = False
                await stream.end()
        except SandkastenError:
            # The server reads no more. `_outward` still reads what it sends, or the error.
            is_open = False


async def _outward(websocket: WebSocket, stream: PortStream) -> None:
    async for piece in stream:
        await websocket.send_bytes(piece)
    await websocket.send_text(_END)


_ERRORS = (SessionNotFound, SessionExpired)

ROUTES = (
    Route(
        "POST",
        "/v1/sessions/{id}/previews",
        make_link,
        "Make a link to a port",
        "ports",
        body=PreviewBody,
        answer=PreviewAnswer,
        status=201,
        errors=(*_ERRORS, PolicyDenied, QuotaExceeded),
        description=(__doc__ or "").strip(),
    ),
    Route(
        "DELETE",
        "/v1/sessions/{id}/previews",
        revoke_links,
        "Revoke all links to a session's ports",
        "ports",
        answer=Revoked,
        errors=_ERRORS,
        description="Also ends the cookies that the links set. Public ports stay public.",
    ),
    Route(
        "DELETE",
        "/v1/sessions/{id}/previews/{link}",
        revoke_link,
        "Revoke one link to a port",
        "ports",
        answer=Revoked,
        errors=(*_ERRORS, QuotaExceeded),
        description="`link` is the `link_id` of the link. Also ends the cookies that it set, and "
        "WebSockets that were opened with them.",
    ),
    Route(
        "WS",
        "/v1/sessions/{id}/tunnels/{port}",
        tunnel,
        "A TCP connection to a server inside",
        "ports",
        gives=("*/*",),
        reads_protocols=True,
        errors=(*_ERRORS, ConnectionRefused),
        description="Binary messages are the bytes of the connection, both ways. The text "
        "message `end` closes one direction.",
    ),
)
