"""What a connection to a runner must offer, seen from the wire.

The same shape as `ports.ByteStream`, stated again because this room may not look outside.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

Buffer: TypeAlias = bytes | bytearray | memoryview


class ByteStream(Protocol):
    """A reliable two-way stream. `receive` answers b"" at the end; errors are OSError."""

    async def receive(self, max_bytes: int) -> bytes: ...
    async def send(self, *parts: Buffer) -> None: ...
    async def aclose(self) -> None: ...


@runtime_checkable
class InPlace(Protocol):
    """A stream that can receive into a buffer of ours; it saves large bodies a copy."""

    async def receive_into(self, buffer: memoryview) -> int:
        """How many bytes came, 0 at the end; raises OSError."""
        ...


@runtime_checkable
class Immediate(Protocol):
    """A stream that can also take bytes at once; it saves a task switch for each small frame."""

    def send_nowait(self, *parts: Buffer) -> int:
        """How many bytes were taken, 0 when none can be now; raises OSError."""
        ...
