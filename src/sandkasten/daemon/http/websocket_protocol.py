"""WebSockets that nobody can hold open by reading nothing.

uvicorn's protocol with what it lacks: its pings find out that nobody answers, but closing politely
waits for a reader who never reads. And a refusal before the handshake is no fault of ours to log.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sandkasten.api.http_limits import HttpLimits

if TYPE_CHECKING:
    import asyncio


_NO_LINGER: Final = struct.pack("ii", 1, 0)


def guarded_websocket(rules: HttpLimits) -> type[WebSocketsSansIOProtocol]:
    """The protocol class with these rules, for uvicorn's `ws`."""

    class Guarded(GuardedWebSocket):
        rules_ = rules

    return Guarded


class GuardedWebSocket(WebSocketsSansIOProtocol):
    rules_: ClassVar[HttpLimits] = HttpLimits()
    _stalled: asyncio.TimerHandle | None = None

    def handle_cont(self, event: Any) -> None:
        # One buffer: a message can come in any number of empty frames.
        if not isinstance(self.frames[0], bytearray):
            self.frames = [bytearray(self.frames[0])]  # type: ignore[list-item]
        self.frames[0] += event.data
        if event.fin:
            self.frames = [bytes(self.frames[0])]
            self.send_receive_event_to_app()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.rules_.write_timeout_s, self._reset)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True

    def _rest(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _reset(self) -> None:
        """At once, and without the rest: the kernel would keep it for somebody who never reads."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()
