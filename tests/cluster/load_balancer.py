"""A load balancer without sessions: each connection goes to the next replica that accepts it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.daemon.process import DaemonProcess

_PIECE = 64 * 1024


class LoadBalancer:
    """`async with LoadBalancer(replicas) as balancer:`. It is reached at `balancer.url`."""

    def __init__(self, replicas: Sequence[DaemonProcess]) -> None:
        self.url = ""
        self._replicas = replicas
        self._next = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> LoadBalancer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            reached = await self._reached()
            if reached is not None:
                there, back = reached
                await _exchanged((reader, back), (there, writer))
        except asyncio.CancelledError:
            # The balancer is closed; asyncio would report this as an error of the connection.
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _reached(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to the next replica that lives; return None if there is none."""
        for _ in self._replicas:
            one = self._replicas[self._next % len(self._replicas)]
            self._next += 1
            where = urlsplit(one.url)
            with suppress(OSError):
                return await asyncio.open_connection(where.hostname, where.port)
        return None


async def _exchanged(*ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Copy both ways until one of them ends."""
    copies = [asyncio.create_task(_copied(*one)) for one in ways]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in copies:
            one.cancel()
        await asyncio.wait(copies)
        for _, writer in ways:
            writer.close()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
