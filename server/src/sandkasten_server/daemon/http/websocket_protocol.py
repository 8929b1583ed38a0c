"""WebSocket connections that bound what a client can make the daemon do or wait for.

Adds to uvicorn's protocol: turns for the others while one sends a lot, a bound on pings, and a
deadline for a client that does not read. Knows no route.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sandkasten_server.api.http_limits import HttpLimits
from sandkasten_server.daemon.http.receive_buffer import ReceiveBuffer, reset

# Parsed in a row: 350 empty frames.
_WEBSOCKET_SLICE_BYTES: Final = 2 * 1024
# Pings and pongs of one WebSocket in a second. Each is answered, and a client sends one in many.
MAX_CONTROL_FRAMES: Final = 100
_POLICY_VIOLATION: Final = 1008


def guarded_websocket(rules: HttpLimits) -> type[WebSocketsSansIOProtocol]:
    """Return the protocol class with these rules, for uvicorn's `ws`."""

    class Guarded(GuardedWebSocket):
        rules_ = rules

    return Guarded


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's pings detect a dead client, but its closing handshake waits for a reader.

    Also marks a refusal before the handshake as complete, so that it is not logged as an error.
    """

    rules_: ClassVar[HttpLimits] = HttpLimits()
    _stalled: asyncio.TimerHandle | None = None
    _second = 0.0
    _control_frames = 0
    _received: ReceiveBuffer

    # ---- what the client sends

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._received = ReceiveBuffer(
            self.transport,
            self.loop,
            slice_bytes=_WEBSOCKET_SLICE_BYTES,
            parse=super().data_received,
            is_paused=lambda: self.read_paused,
        )

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated:
            self._received.received(data)
        else:
            super().data_received(data)

    async def receive(self) -> Any:
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._received.proceed()
        # One message, one turn: a queue with messages would never give one to others.
        await asyncio.sleep(0)
        return message

    def handle_ping(self) -> None:
        if self._admits_control_frame():
            super().handle_ping()

    def handle_pong(self, event: Any) -> None:
        if self._admits_control_frame():
            super().handle_pong(event)

    def _admits_control_frame(self) -> bool:
        now = self.loop.time()
        if now - self._second >= 1.0:
            self._second, self._control_frames = now, 0
        self._control_frames += 1
        if self._control_frames == MAX_CONTROL_FRAMES + 1 and not self.close_sent:
            self.conn.fail(_POLICY_VIOLATION, "too many pings")
            self.handle_parser_exception()
        return self._control_frames <= MAX_CONTROL_FRAMES and not self.close_sent

    def handle_cont(self, event: Any) -> None:
        # One buffer: a message can consist of any number of empty frames.
        if not isinstance(self.frames[0], bytearray):
            self.frames = [bytearray(self.frames[0])]  # type: ignore[list-item]
        self.frames[0] += event.data
        if event.fin:
            self.frames = [bytes(self.frames[0])]
            self.send_receive_event_to_app()

    # ---- what it is sent

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.rules_.write_timeout_s, self._reset)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        self._received.close()
        super().connection_lost(exc)

    async def send(self, message: Any) -> None:
        await super().send(message)
        # As for a received message. A client that left is noticed in this turn, at the latest.
        await asyncio.sleep(0)
        if self.close_sent and not self.disconnected:
            # The client's answer to a close may be behind what was not parsed yet.
            self._received.proceed()
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True

    def _rest(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _reset(self) -> None:
        reset(self.transport)
