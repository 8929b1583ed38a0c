"""A terminal over a WebSocket that survives reconnects.

Binary messages are the terminal's bytes, both ways. Text messages are JSON with a `type`: from the
daemon `started` (exec_id, offset), `gap` (bytes that were not kept), `exit` (the exec answer
without output) and `error`; from the client `resize` (rows, cols), `signal` (signal), `input`
(text), `detach` and `close` (hang up). A client that reconnects with `exec_id` and the number of
bytes it has seen (`offset`) continues there. The image's shell does not count as activity until
something is typed into it, and until then it ends with its last client.

A page offers the subprotocols `sandkasten` and `sandkasten.bearer.<key in base64url>` instead of an
Authorization header, which browsers do not send here.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import Field
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from sandkasten.errors import (
    ExecNotFound,
    InvalidRequest,
    SandkastenError,
    SessionExpired,
    SessionNotFound,
    ShellNotFound,
)
from sandkasten.model.commands.signals import signal_number
from sandkasten.model.json_codec import to_json
from sandkasten_server.api.error_responses import body_of
from sandkasten_server.api.request.socket_protocols import accept
from sandkasten_server.api.response.json_response import as_json
from sandkasten_server.api.route import Query, Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_runtime.engine.commands.terminals import AttachedTerminal
    from sandkasten_server.api.request.http_call import Call

_MAX_CONTROL = 64 * 1024
_POLICY_VIOLATION = 1008


class PtyQuery(Query):
    rows: int = Field(24, ge=1, le=10_000)
    cols: int = Field(80, ge=1, le=10_000)
    exec_id: str | None = Field(None, description="Id of an existing terminal to attach to.")
    offset: int = Field(0, ge=0, le=2**62, description="Number of bytes already received.")
    command: str | None = Field(None, description="A JSON list; the image's shell by default.")
    cwd: str | None = None
    env: str | None = Field(None, description="A JSON object of variables.")
    keep_seconds: float = Field(
        60.0,
        ge=0,
        le=86_400,
        description="How long the terminal lives without an attached client. The image's shell "
        "into which nothing was typed ends with its last client.",
    )


async def pty(call: Call) -> None:
    query = call.query(PtyQuery)
    the_id = await call.session()
    command = _command(query.command)
    terminals = call.engine.terminals
    exec_id = query.exec_id
    if exec_id is None:
        exec_id = await terminals.start(
            the_id,
            command=command,
            rows=query.rows,
            cols=query.cols,
            env=_environment(query.env),
            cwd=query.cwd,
        )
    else:
        await terminals.resize(the_id, exec_id, query.rows, query.cols)
    websocket = call.connection
    assert isinstance(websocket, WebSocket)
    async with terminals.attach(
        the_id, exec_id, offset=query.offset, keep_s=query.keep_seconds
    ) as attached:
        await accept(websocket)
        await _say(websocket, {"type": "started", "exec_id": exec_id, "offset": query.offset})
        showing = asyncio.create_task(_show(websocket, attached, call.request_id))
        listening = asyncio.create_task(_listen(call, websocket, the_id, exec_id))
        both = (showing, listening)
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        for task in done:
            task.result()
    if websocket.client_state is WebSocketState.CONNECTED:
        # The client may leave first.
        with suppress(WebSocketDisconnect, RuntimeError):
            await websocket.close()


async def _show(websocket: WebSocket, attached: AttachedTerminal, request_id: str) -> None:
    try:
        async for shown in attached:
            if shown.gap_bytes:
                await _say(websocket, {"type": "gap", "bytes": shown.gap_bytes})
            await websocket.send_bytes(shown.data)
        result = await attached.result()
    except SandkastenError as exc:
        await _say(websocket, {"type": "error", **body_of(exc, request_id)})
    except (WebSocketDisconnect, RuntimeError):
        # The client left in the middle of a message; the terminal waits for it to return.
        return
    else:
        ended = to_json(result)
        await _say(websocket, {"type": "exit", **ended, "offset": attached.offset})


async def _listen(call: Call, websocket: WebSocket, the_id: str, exec_id: str) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        data, text = message.get("bytes"), message.get("text")
        try:
            if data is not None:
                await call.engine.terminals.send(the_id, exec_id, data)
            elif text is not None and not await _control(call, the_id, exec_id, text):
                return
        except SandkastenError as exc:
            # A terminal that has just ended takes no more keys; its end is on the way.
            if not isinstance(exc, ExecNotFound):
                await _say(websocket, {"type": "error", **body_of(exc, call.request_id)})


async def _control(call: Call, the_id: str, exec_id: str, text: str) -> bool:
    """Handle a control message; return False when the client wants to leave."""
    try:
        message: Any = json.loads(text) if len(text) <= _MAX_CONTROL else None
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise InvalidRequest("a text message must be a JSON object", hint='{"type": "resize", …}')
    engine, kind = call.engine, message.get("type")
    if kind == "resize":
        await engine.terminals.resize(the_id, exec_id, message.get("rows"), message.get("cols"))  # type: ignore[arg-type]
    elif kind == "input" and isinstance(message.get("data"), str):
        data = message["data"].encode("utf-8", "replace")
        await engine.terminals.send(the_id, exec_id, data)
    elif kind == "signal":
        await engine.exec_signal(the_id, exec_id, signal_number(message.get("signal")))
    elif kind == "close":
        await engine.terminals.hang_up(the_id, exec_id)
    elif kind == "detach":
        return False
    else:
        raise InvalidRequest(
            "this is not a message for a terminal", hint="resize, input, signal, detach or close"
        )
    return True


async def _say(websocket: WebSocket, value: Mapping[str, object]) -> None:
    if websocket.client_state is WebSocketState.CONNECTED:
        try:
            await websocket.send_text(as_json(value).decode())
        except (WebSocketDisconnect, RuntimeError):
            return


def _command(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise InvalidRequest(
            "command must be a JSON list of strings", hint='command=["bash","-l"]', http_status=422
        )
    return tuple(words)


def _environment(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError):
        variables = None
    if not isinstance(variables, dict) or not all(
        isinstance(value, str) for value in variables.values()
    ):
        raise InvalidRequest(
            "env must be a JSON object of strings", hint='env={"TERM":"xterm"}', http_status=422
        )
    return variables


ROUTES = (
    Route(
        "WS",
        "/v1/sessions/{id}/pty",
        pty,
        "An interactive terminal (WebSocket)",
        "pty",
        query=PtyQuery,
        activity="input",
        reads_protocols=True,
        errors=(SessionNotFound, SessionExpired, ExecNotFound, ShellNotFound),
        description=(__doc__ or "").strip(),
    ),
)
