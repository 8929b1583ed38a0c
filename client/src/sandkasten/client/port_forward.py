"""A listener on this machine whose connections go to a port of a sandbox.

Listens on loopback only. Each connection is one to the server inside; if that refuses, the
connection is closed and the listener stays.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Self

from sandkasten.errors import InvalidRequest, SandkastenError
from sandkasten.model.numbers import whole

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from sandkasten.client.process import Handle
    from sandkasten.client.server.transport import PortTransport, Transport

LOOPBACK: Final = "127.0.0.1"
_PIECE: Final = 64 * 1024
# Connections of one listener; each takes two descriptors and a connection to the sandbox.
_MAX_CONNECTIONS: Final = 256


class AsyncPortForward:
    """A listener on 127.0.0.1 for a port of a sandbox, until the end of its `async with` block."""

    def __init__(self, box: Handle, port: int, local_port: int) -> None:
        self._box = box
        self.port: Final = whole("port", port, low=1, high=65_535)
        self._wanted = whole("local_port", local_port, low=0, high=65_535)
        self._bound: int | None = None
        self._manager: AbstractAsyncContextManager[int] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._box.id}, {self.port})"

    @property
    def local_port(self) -> int:
        """Its port on this machine."""
        if self._bound is None:
            raise InvalidRequest("the port is not forwarded", hint="use it inside a with block")
        return self._bound

    @property
    def address(self) -> str:
        """Host and port on this machine, as `127.0.0.1:15432`."""
        return f"{LOOPBACK}:{self.local_port}"

    async def __aenter__(self) -> Self:
        transport = await self._box.transport()
        # An error now, and not at the first connection.
        await transport.get(self._box.id)
        self._manager = forwarding(transport, self._box.id, self.port, self._wanted)
        self._bound = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bound = None
        if self._manager is not None:
            await self._manager.__aexit__(kind, error, trace)


@asynccontextmanager
async def forwarding(
    transport: Transport,
    sandbox_id: str,
    port: int,
    local_port: int = 0,
    *,
    failed: Callable[[SandkastenError], None] = lambda error: None,
) -> AsyncGenerator[int]:
    """Listen until the block ends; yields the local port. `failed` is called with the reason why
    one was closed.
    """
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
