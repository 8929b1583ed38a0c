"""A listener on this machine whose connections go to a port of a sandbox.

Listens on loopback only. Each connection is one to the server inside; if that refuses, the
connection is closed and the listener stays.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, SandkastenError
from sandkasten.model.numbers import whole

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from sandkasten.client.server.transport import PortTransport, Transport

LOOPBACK: Final = "127.0.0.1"
_PIECE: Final = 64 * 1024
# Of one listener; each takes two descriptors and a connection to the sandbox.
_MAX_CONNECTIONS: Final = 256


@asynccontextmanager
async def forwarding(
    transport: Transport,
    sandbox_id: str,
    port: int,
    local_port: int = 0,
    *,
    failed: Callable[[SandkastenError], None] = lambda error: None,
) -> AsyncGenerator[int]:
    """Listen until the block ends; yields the local port. `failed` is told why one was closed."""
    port = whole("port", port, low=1, high=65_535)
    local_port = whole("local port", local_port, low=0, high=65_535)
    open_now: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        try:
            if len(open_now) <= _MAX_CONNECTIONS:
                async with transport.connect(sandbox_id, port) as stream:
                    await _carry(reader, writer, stream)
        except SandkastenError as exc:
            failed(exc)
        except (OSError, asyncio.CancelledError):
            return
        finally:
            open_now.discard(task)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    try:
        server = await asyncio.start_server(serve, LOOPBACK, local_port, family=socket.AF_INET)
    except OSError as exc:
        raise InvalidRequest(
            f"cannot listen on {LOOPBACK}:{local_port}: {exc.strerror or exc}",
            hint="another program may use the port; name another one, or 0 for any",
            field="local",
        ) from exc
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in list(open_now):
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: PortTransport
) -> None:
    """Pass on bytes both ways until the server inside ends its side."""
    inward = asyncio.create_task(_inward(reader, stream))
    try:
        async for piece in stream:
            writer.write(piece)
            await writer.drain()
    finally:
        inward.cancel()
        await asyncio.gather(inward, return_exceptions=True)


async def _inward(reader: asyncio.StreamReader, stream: PortTransport) -> None:
    while piece := await reader.read(_PIECE):
        await stream.send(piece)
    await stream.end()
