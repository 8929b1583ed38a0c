"""A terminal inside a sandbox over a WebSocket: bytes both ways, resize, signals, an exit status.

Binary messages are what is typed and printed; texts are JSON. A connection that breaks is made
again and goes on after the last piece that came; leaving hangs up, as closing a window does.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from sandkasten.client.http.mapping import exec_result_of
from sandkasten.client.http.problems import body_error
from sandkasten.client.http.streams import PAUSE_S, RECONNECTS
from sandkasten.client.http.values import record, text
from sandkasten.errors import BackendUnavailable, ProtocolViolation, SandkastenError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from sandkasten.client.http.connection import Connection
    from sandkasten.model.execution import ExecResult

HELLO_S: Final = 30.0


class HttpTerminal:
    """One task may iterate while another sends."""

    def __init__(self, connection: Connection, path: str, query: Mapping[str, str]) -> None:
        self._connection = connection
        self._path = path
        self._query = dict(query)
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._joining = asyncio.Lock()
        self._seen = 0
        self._result: ExecResult | None = None
        self.exec_id = ""

    async def join(self) -> None:
        """Connect, or connect again to the same terminal."""
        query = dict(self._query)
        if self.exec_id:
            query = {"exec_id": self.exec_id, "since_seq": str(self._seen)}
        socket = await self._connection.websocket(self._path, query)
        try:
            async with asyncio.timeout(HELLO_S):
                hello = self._control(await socket.receive())
        except TimeoutError:
            await socket.close()
            raise ProtocolViolation("the daemon did not say which terminal it opened") from None
        if hello is None or hello.get("type") != "ready":
            await socket.close()
            raise ProtocolViolation("the daemon did not say which terminal it opened")
        self.exec_id = text(hello, "exec_id")
        self._socket = socket

    async def send(self, data: bytes) -> None:
        await self._say(data)

    async def resize(self, rows: int, cols: int) -> None:
        await self._say({"type": "resize", "rows": rows, "cols": cols})

    async def signal(self, signal: int) -> None:
        await self._say({"type": "signal", "signal": signal})

    async def __aiter__(self) -> AsyncIterator[bytes]:
        broken = 0
        while self._result is None:
            socket = self._socket
            assert socket is not None
            message = await socket.receive()
            if message.type == aiohttp.WSMsgType.BINARY:
                broken = 0
                # The first eight bytes say which piece it is.
                self._seen = int.from_bytes(message.data[:8], "big")
                if len(message.data) > 8:
                    yield message.data[8:]
            elif message.type == aiohttp.WSMsgType.TEXT:
                self._hear(self._control(message))
            elif self._result is None:
                broken += 1
                await self._rejoin(socket, broken)

    async def result(self) -> ExecResult:
        async for _ in self:
            pass
        assert self._result is not None
        return self._result

    async def leave(self) -> None:
        if self._socket is not None:
            # 1000 hangs up; any other end is an accident, after which somebody comes back.
            await self._socket.close(code=1000)

    def _hear(self, told: dict[str, Any] | None) -> None:
        if told is None:
            return
        kind = told.get("type")
        if kind == "exit":
            self._result = exec_result_of(told)
        elif kind == "error":
            raise body_error(told)

    def _control(self, message: aiohttp.WSMessage) -> dict[str, Any] | None:
        if message.type != aiohttp.WSMsgType.TEXT:
            return None
        try:
            told = record(json.loads(message.data), "message")
        except ValueError:
            raise ProtocolViolation("a message of the daemon is no JSON") from None
        if told.get("type") == "error":
            raise body_error(told)
        return told

    async def _say(self, what: bytes | dict[str, object]) -> None:
        for turn in range(1, RECONNECTS + 1):
            socket = self._socket
            assert socket is not None
            try:
                if isinstance(what, bytes):
                    await socket.send_bytes(what)
                else:
                    await socket.send_str(json.dumps(what))
            except (aiohttp.ClientError, OSError):
                await self._rejoin(socket, turn)
            else:
                return

    async def _rejoin(self, lost: aiohttp.ClientWebSocketResponse, turn: int) -> None:
        async with self._joining:
            if self._socket is not lost or self._result is not None:
                return
            if turn > RECONNECTS:
                raise BackendUnavailable(
                    "the connection to the terminal broke", hint="the daemon may be gone"
                )
            await asyncio.sleep(PAUSE_S * turn)
            await self.join()


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
    query = {"rows": str(rows), "cols": str(cols)}
    if command is not None:
        query["command"] = json.dumps(list(command))
    if env:
        query["env"] = json.dumps(dict(env))
    if cwd is not None:
        query["cwd"] = cwd
    terminal = HttpTerminal(connection, path, query)
    await terminal.join()
    try:
        yield terminal
    finally:
        await terminal.leave()


__all__ = ["HttpTerminal", "SandkastenError", "open_terminal"]
