"""The WebSocket port proxy: messages to and from a server inside a sandbox.

The handshake with the inner server comes first, so a refusal there is a refusal here. Messages are
limited on both sides. Fails as `port_proxy` does; once open, a broken side closes the other with a
code that states the reason.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response as HandshakeAnswer
from websockets.uri import parse_uri

from sandkasten.errors import CommandTimeout, ProtocolViolation
from sandkasten_server.api.proxy.port_proxy import ANSWER_TIMEOUT_S, Target, onward_headers

if TYPE_CHECKING:
    from sandkasten_runtime.engine.commands.port_stream import PortStream
    from sandkasten_server.api.request.http_call import Call

_MAX_MESSAGE: Final = 16 << 20
# Parsed at once: thousands of empty frames fit in it, and others wait meanwhile.
_SLICE: Final = 2 * 1024


async def tunnel(call: Call, websocket: WebSocket, the_id: str, target: Target) -> None:
    async with call.engine.connect(the_id, target.port) as stream:
        inner = _Inner(stream, target, websocket, call)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await inner.open()
        except TimeoutError as exc:
            raise CommandTimeout(
                f"the server on port {target.port} did not answer the handshake",
                hint="check the server on that port",
            ) from exc
        await websocket.accept(subprotocol=inner.protocol.subprotocol)
        inward = asyncio.create_task(_inward(websocket, inner))
        outward = asyncio.create_task(_outward(websocket, inner))
        try:
            await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (inward, outward):
                task.cancel()
            await asyncio.gather(inward, outward, return_exceptions=True)
        await _closed(websocket, inner)


class _Inner:
    """The connection to the inner server."""

    def __init__(
        self, stream: PortStream, target: Target, websocket: WebSocket, call: Call
    ) -> None:
        self._stream = stream
        self._pieces = stream.__aiter__()
        self._target = target
        self._call = call
        uri = parse_uri(f"ws://localhost:{target.port}{target.path}")
        self.protocol = ClientProtocol(
            uri,
            subprotocols=websocket.scope.get("subprotocols") or None,
            max_size=_MAX_MESSAGE,
        )
        self._waiting: list[Any] = []
        self._unread = b""

    async def open(self) -> None:
        request = self.protocol.connect()
        del request.headers["Host"]
        for name, value in onward_headers(self._call, self._target):
            if not name.lower().startswith(b"content-"):
                request.headers[name.decode("latin-1")] = value.decode("latin-1")
        self.protocol.send_request(request)
        await self.flush()
        # The answer is the first event there is; what came with it are the first frames.
        answer, *self._waiting = await self.receive()
        assert isinstance(answer, HandshakeAnswer)
        if self.protocol.handshake_exc is not None:
            raise _refused(self.protocol.handshake_exc)

    async def receive(self) -> list[Any]:
        """Return what arrived; never an empty list."""
        if self._waiting:
            events, self._waiting = self._waiting, []
            return events
        while True:
            try:
                if not self._unread:
                    self._unread = await anext(self._pieces)
                else:
                    await asyncio.sleep(0)
                part, self._unread = self._unread[:_SLICE], self._unread[_SLICE:]
                self.protocol.receive_data(part)
                if self.protocol.handshake_exc is not None:
                    # What follows is not read: it may never end.
                    raise _refused(self.protocol.handshake_exc)
            except StopAsyncIteration:
                self.protocol.receive_eof()
                if self.protocol.handshake_exc is not None:
                    raise _refused(self.protocol.handshake_exc) from None
                raise
            await self.flush()
            events = list(self.protocol.events_received())
            if events:
                return events

    async def flush(self) -> None:
        for data in self.protocol.data_to_send():
            if data:
                await self._stream.send(data)


async def _inward(websocket: WebSocket, inner: _Inner) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            code = message.get("code") or int(CloseCode.NORMAL_CLOSURE)
            inner.protocol.send_close(code if code not in (1005, 1006) else 1001)
        elif message.get("bytes") is not None:
            inner.protocol.send_binary(message["bytes"])
        else:
            inner.protocol.send_text(message["text"].encode())
        await inner.flush()
        if message["type"] == "websocket.disconnect":
            return


async def _outward(websocket: WebSocket, inner: _Inner) -> None:
    # One buffer: a message can come in any number of empty frames.
    message, binary = bytearray(), False
    while True:
        try:
            events = await inner.receive()
        except (StopAsyncIteration, ProtocolViolation):
            return
        for event in events:
            if not isinstance(event, Frame):
                continue
            if event.opcode is Opcode.CLOSE:
                return
            if event.opcode in (Opcode.TEXT, Opcode.BINARY):
                message, binary = bytearray(), event.opcode is Opcode.BINARY
            elif event.opcode is not Opcode.CONT:
                continue
            message += event.data
            if len(message) > _MAX_MESSAGE:
                return
            if event.fin:
                whole, message = bytes(message), bytearray()
                try:
                    if binary:
                        await websocket.send_bytes(whole)
                    else:
                        await websocket.send_text(whole.decode(errors="replace"))
                except (WebSocketDisconnect, RuntimeError):
                    return


async def _closed(websocket: WebSocket, inner: _Inner) -> None:
    if websocket.client_state is not WebSocketState.CONNECTED:
        return
    code = inner.protocol.close_code
    # 1005 and 1006 stand for a close frame that never came; they are never sent.
    sent = code if code is not None and code not in (1005, 1006) else 1011
    try:
        await websocket.close(sent, (inner.protocol.close_reason or "")[:100])
    except RuntimeError:
        return


def _refused(exc: BaseException) -> ProtocolViolation:
    if isinstance(exc, InvalidStatus):
        why = f"it answered {exc.response.status_code}"
    elif isinstance(exc, InvalidHandshake):
        why = str(exc)[:200]
    else:
        why = "it closed the connection"
    return ProtocolViolation(
        f"the server inside did not open a WebSocket: {why}", hint="check the server on that port"
    )
