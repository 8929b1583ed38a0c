"""Standard input and output of a command in a Modal sandbox, as a byte stream. Fails only with
OSError.

The command is the relay of our runner, which ends with its input. Each piece that is sent is one
request, answered when the command has it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from sandkasten.disk.cleanup import finish
from sandkasten_cloud.modal.modal_errors import CALL_ERRORS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from modal.container_process import ContainerProcess

# The SDK buffers at most 16 MiB of input for one request.
_PIECE_BYTES: Final = 1 << 20
_CLOSE_S: Final = 5.0


class RelayStream:
    """Implements `ports.ByteStream`."""

    def __init__(self, process: ContainerProcess[bytes]) -> None:
        self._process = process
        self._output: AsyncGenerator[bytes, None] = aiter(process.stdout)
        self._left = b""
        self._reading: asyncio.Future[bytes] | None = None
        # Pieces must arrive in the order in which they were sent.
        self._turn = asyncio.Lock()
        self._closed = False

    async def receive(self, max_bytes: int) -> bytes:
        if not self._left and not self._closed:
            self._left = await self._next()
        data, self._left = self._left[:max_bytes], self._left[max_bytes:]
        return data

    async def _next(self) -> bytes:
        # A separate task: `aclose` must be able to end it.
        self._reading = asyncio.ensure_future(_first(self._output))
        try:
            return await self._reading
        except asyncio.CancelledError:
            if self._closed:
                return b""
            self._reading.cancel()
            raise
        except CALL_ERRORS as exc:
            if self._closed:
                return b""
            raise ConnectionResetError(str(exc)) from exc
        finally:
            self._reading = None

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        if self._closed:
            raise BrokenPipeError("the stream is closed")
        data = b"".join(parts)
        async with self._turn:
            for at in range(0, len(data), _PIECE_BYTES):
                try:
                    self._process.stdin.write(data[at : at + _PIECE_BYTES])
                    await self._process.stdin.drain.aio()
                except (*CALL_ERRORS, ValueError) as exc:
                    raise BrokenPipeError(str(exc)) from exc

    async def aclose(self) -> None:
        """Close. A pending receive returns b"". Twice is fine."""
        if self._closed:
            return
        self._closed = True
        reading = self._reading
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
        await finish(self._close())

    async def _close(self) -> None:
        # The relay ends with its input; nothing else ends a command of a sandbox.
        with contextlib.suppress(*CALL_ERRORS, ValueError):
            async with asyncio.timeout(_CLOSE_S), self._turn:
                self._process.stdin.write_eof()
                await self._process.stdin.drain.aio()
        # Left to the garbage collector, its end would be an error that no one handles.
        with contextlib.suppress(*CALL_ERRORS):
            async with asyncio.timeout(_CLOSE_S):
                await self._output.aclose()


async def _first(output: AsyncGenerator[bytes, None]) -> bytes:
    """Return the next piece; b"" at the end."""
    return await anext(output, b"")
