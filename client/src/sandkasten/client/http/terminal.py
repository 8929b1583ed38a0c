"""A terminal inside a sandbox over a WebSocket: bytes both ways, resize, signals, exit status.

Binary messages are input and output; text messages are JSON. A lost connection is reopened after
the last byte that arrived; leaving hangs up, as closing a window does.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from sandkasten.client.http.error_responses import body_error
from sandkasten.client.http.json_values import count, record, text
from sandkasten.client.http.reconnect import Patience
from sandkasten.client.http.session_json import exec_result_of
from sandkasten.errors import BackendUnavailable, ProtocolViolation, SandkastenError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from sandkasten.client.http.connection import Connection
    from sandkasten.model.commands.exec_values import ExecResult

HELLO_S: Final = 30.0
# How long a program may take to end when its terminal is closed; the daemon kills it before.
HANG_UP_S: Final = 5.0


class HttpTerminal:
    """A terminal; one task may iterate while another sends."""

    def __init__(self, connection: Connection, path: str, rows: int, cols: int) -> None:
        self._connection = connection
        self._path = path
        self._size = (rows, cols)
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._joining = asyncio.Lock()
        self._seen = 0
        self._patience = Patience()
        self._result: ExecResult | None = None
        self.exec_id = ""

    async def join(self, first: Mapping[str, str] | None = None) -> None:
        """Open the terminal, or reconnect to it."""
        rows, cols = self._size
        query = {"rows": str(rows), "cols": str(cols), **(first or {})}
        if first is None:
            query |= {"exec_id": self.exec_id, "offset": str(self._seen)}
        socket = await self._connection.websocket(self._path, query)
        try:
            async with asyncio.timeout(HELLO_S):
                hello = _told(await socket.receive())
        except BaseException:
            await socket.close()
            raise
        if hello is None or hello.get("type") != "started":
            await socket.close()
            raise ProtocolViolation("the daemon did not say which terminal it opened")
        self.exec_id = text(hello, "exec_id")
        self._socket = socket
        self._patience.there()

    async def send(self, data: bytes) -> None:
        await self._say(data)

    async def resize(self, rows: int, cols: int) -> None:
        self._size = (rows, cols)
        await self._say({"type": "resize", "rows": rows, "cols": cols})

    async def signal(self, signal: int) -> None:
        await self._say({"type": "signal", "signal": signal})

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._result is None:
            socket = self._open
            message = await socket.receive()
            if message.type == aiohttp.WSMsgType.BINARY:
                self._seen += len(message.data)
                yield message.data
            elif message.type == aiohttp.WSMsgType.TEXT:
                self._hear(_told(message))
            else:
                await self._rejoin(socket)

    async def result(self) -> ExecResult:
        async for _ in self:
            pass
        assert self._result is not None
        return self._result

    async def leave(self) -> None:
        """Hang up, unless it has ended."""
        socket = self._socket
        if socket is None or socket.closed:
            return
        # The connection may close while we send the close frame.
        with suppress(SandkastenError, aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(HANG_UP_S):
                if self._result is None:
                    await socket.send_str('{"type":"close"}')
                while self._result is None:
                    message = await socket.receive()
                    if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                        break
                    self._hear(_told(message))
        await socket.close()

    @property
    def _open(self) -> aiohttp.ClientWebSocketResponse:
        assert self._socket is not None
        return self._socket

    def _hear(self, message: dict[str, Any] | None) -> None:
        if message is None:
            return
        if message.get("type") == "exit":
            self._result = exec_result_of(message)
        elif message.get("type") == "gap":
            self._seen += count(message, "bytes")

    async def _say(self, what: bytes | dict[str, object]) -> None:
        while self._result is None:
            socket = self._open
            try:
                if isinstance(what, bytes):
                    await socket.send_bytes(what)
                else:
                    await socket.send_str(json.dumps(what))
            except (aiohttp.ClientError, OSError):
                await self._rejoin(socket)
            else:
                return

    async def _rejoin(self, lost: aiohttp.ClientWebSocketResponse) -> None:
        async with self._joining:
            if self._socket is not lost:
                return
            cause: BaseException | None = None
            while True:
                await self._patience.wait(
                    "the connection to the terminal broke", "the daemon may be gone", cause
                )
                try:
                    await self.join()
                except SandkastenError as exc:
                    if not isinstance(exc, BackendUnavailable):
                        raise
                    cause = exc
                except (aiohttp.ClientError, OSError, TimeoutError) as exc:
                    cause = exc
                else:
                    return


@asynccontextmanager
async def open_terminal(
    connection: Connection,
    path: str,
    *,
    command: tuple[str, ...] | None,
    rows: int,
    cols: int,
    env: Mapping[str, str] | None,
    cwd: str | None,
) -> AsyncGenerator[HttpTerminal]:
    query: dict[str, str] = {}
    if command is not None:
        query["command"] = json.dumps(list(command))
    if env:
        query["env"] = json.dumps(dict(env))
    if cwd is not None:
        query["cwd"] = cwd
    terminal = HttpTerminal(connection, path, rows, cols)
    await terminal.join(query)
    try:
        yield terminal
    finally:
        await terminal.leave()


def _told(message: aiohttp.WSMessage) -> dict[str, Any] | None:
    """Decode a text message; raise the error that it reports."""
    if message.type != aiohttp.WSMsgType.TEXT:
        return None
    try:
        body = record(json.loads(message.data), "message")
    except ValueError:
        raise ProtocolViolation("a message of the daemon is not JSON") from None
    if body.get("type") == "error":
        raise body_error(body)
    return body
