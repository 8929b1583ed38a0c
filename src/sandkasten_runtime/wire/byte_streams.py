"""The stream interface of a connection to a runner.

The same as `ports.ByteStream`, repeated because this package must not import others.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Buffer: TypeAlias = bytes | bytearray | memoryview


class ByteStream(Protocol):
    """A reliable two-way stream. `receive` returns b"" at the end; errors are OSError."""

    async def receive(self, max_bytes: int) -> bytes: ...
    async def send(self, *parts: Buffer) -> None: ...
    async def aclose(self) -> None: ...


@runtime_checkable
class InPlace(Protocol):
    """A stream that can receive into a given buffer, which saves a copy of large bodies."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Return the number of bytes received, 0 at the end. Raise OSError."""
        ...


@runtime_checkable
class Handing(Protocol):
    """A stream that can hand what arrives to a function, which saves a task switch for each small
    frame.
    """

    async def receive_or_hand(self, max_bytes: int, take: Callable[[bytes], bool]) -> bytes | None:
        """Return what is there now, b"" at the end. Otherwise wait, and call `take` with each piece
        that arrives; return None once it returns False. Raise OSError, and what `take` raises.
        """
        ...


@runtime_checkable
class Immediate(Protocol):
    """A stream that can also send without waiting, which saves a task switch for each small
    frame.
    """

    def send_nowait(self, *parts: Buffer) -> int:
        """Return the number of bytes sent, 0 if none can be sent now. Raise OSError."""
        ...


@runtime_checkable
class Descriptors(Protocol):
    """A stream on which descriptors can arrive with the bytes; too many are an OSError."""

    @property
    def same_kernel(self) -> bool:
        """Return whether the other end runs on the kernel of this process."""
        ...

    def expect_descriptors(self, expected: bool) -> None:
        """Keep what arrives from now on; otherwise what arrives is an OSError."""
        ...

    def take_descriptor(self) -> int | None:
        """Return the oldest descriptor that is kept, which the caller then owns."""
        ...


def drop_descriptor(descriptor: int) -> None:
    """Close a descriptor of unknown kind beside the loop; see `drop_descriptors`."""
    drop_descriptors([descriptor])


def drop_descriptors(descriptors: Iterable[int]) -> None:
    """Close descriptors of unknown kind beside the loop.

    Closing a FUSE file asks its program, which may never answer, and closing a socket with
    SO_LINGER waits for its peer. A range is closed at once, so that one that waits does not keep
    the numbers of the others.
    """
    ranges: list[list[int]] = []
    for descriptor in sorted(descriptors):
        if ranges and ranges[-1][1] == descriptor:
            ranges[-1][1] += 1
        else:
            ranges.append([descriptor, descriptor + 1])
    for bounds in ranges:
        threading.Thread(target=os.closerange, args=bounds, name="drop", daemon=True).start()


class PrefixedStream:
    """A stream whose first bytes have already been read."""

    def __init__(self, first: bytes, stream: ByteStream) -> None:
        self._first = first
        self._stream = stream

    async def receive(self, max_bytes: int) -> bytes:
        if not self._first:
            return await self._stream.receive(max_bytes)
        data, self._first = self._first[:max_bytes], self._first[max_bytes:]
        return data

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        await self._stream.send(*parts)

    async def aclose(self) -> None:
        await self._stream.aclose()
