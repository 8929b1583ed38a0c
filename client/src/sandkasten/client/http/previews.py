"""Links to ports of a daemon's sessions, and TCP connections to them over a WebSocket."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import aiohttp

from sandkasten.client.http.connection import HttpRequest, session_path
from sandkasten.client.http.json_values import given, record, wrong
from sandkasten.client.http.json_values import text as text_of
from sandkasten.errors import BackendUnavailable
from sandkasten.model.access.preview_links import Preview, link_id_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from sandkasten.client.http.connection import Connection

_END: Final = "end"
# The size of one message; the daemon accepts up to 16 MiB.
_PIECE: Final = 1 << 20


class HttpPreviews:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def link(
        self,
        sandbox_id: str,
        port: int,
        *,
        public: bool | None = None,
        ttl_seconds: float | None = None,
    ) -> Preview:
        body = {"port": port, **given(public=public, ttl_seconds=ttl_seconds)}
        order = HttpRequest("POST", session_path(sandbox_id, "previews"), body, repeatable=True)
        reply = record(await self._connection.ask(order), "preview")
        public, until = reply.get("public"), reply.get("expires_at_unix")
        if not isinstance(public, bool):
            raise wrong("public")
        if until is not None and not isinstance(until, int | float):
            raise wrong("expires_at_unix")
        link_id = reply.get("link_id")
        if link_id is not None and not isinstance(link_id, str):
            raise wrong("link_id")
        return Preview(text_of(reply, "url"), port, public, until, link_id)

    async def revoke(self, sandbox_id: str, link: str | None) -> None:
        name = "previews" if link is None else f"previews/{link_id_of(link)}"
        await self._connection.ask(
            HttpRequest("DELETE", session_path(sandbox_id, name), repeatable=True)
        )


class HttpPortStream:
    """A TCP connection to a server inside. Iterate it to read what the server sends."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        try:
            for at in range(0, len(data), _PIECE):
                await self._socket.send_bytes(data[at : at + _PIECE])
        except (aiohttp.ClientError, OSError) as exc:
            raise _lost() from exc

    async def end(self) -> None:
        """Close our side. The server's answer can still be read."""
        try:
            await self._socket.send_str(_END)
        except (aiohttp.ClientError, OSError) as exc:
            raise _lost() from exc

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            message = await self._socket.receive()
            if message.type == aiohttp.WSMsgType.BINARY:
                yield message.data
            elif message.type == aiohttp.WSMsgType.TEXT and message.data == _END:
                return
            else:
                raise _lost()


@asynccontextmanager
async def open_port(
    connection: Connection, sandbox_id: str, port: int
) -> AsyncGenerator[HttpPortStream]:
    socket = await connection.websocket(session_path(sandbox_id, f"tunnels/{port}"), {})
    try:
        yield HttpPortStream(socket)
    finally:
        await socket.close()


def _lost() -> BackendUnavailable:
    return BackendUnavailable(
        "the connection to the port was lost",
        hint="the sandbox, its server or the daemon may have ended",
    )
