"""A byte stream to a server inside a sandbox. It needs no network."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sandkasten.errors import ProtocolViolation
from sandkasten.model.numbers import whole
from sandkasten_runtime.wire.call import Call, CallEvent, Data

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten_runtime.engine.handles import Handles


class PortStream:
    """Iterate it to read what the server sends. It ends when the server closes its side."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def send(self, data: bytes) -> None:
        await self._call.send(data)

    async def end(self) -> None:
        """Close our side. The server's answer can still be read."""
        await self._call.end()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for item in self._call:
            if isinstance(item, Data):
                yield bytes(item.data)


@asynccontextmanager
async def connect_port(handles: Handles, sandbox_id: str, port: int) -> AsyncIterator[PortStream]:
    """Connect to a port inside the sandbox. Raise ConnectionRefused if no server listens there."""
    port = whole("port", port, low=1, high=65_535)
    handle, channel = await handles.connect(sandbox_id)
    async with (
        handles.explaining(handle),
        channel.stream("port.connect", {"port": port}) as call,
    ):
        async for item in call:
            if isinstance(item, CallEvent) and item.name == "connected":
                break
            raise ProtocolViolation("the runner sent bytes of a port before it was connected")
        yield PortStream(call)
