"""A file of a sandbox, opened for reading by its runner: as an open descriptor, or as a stream.

Where the runner is on this kernel it passes the file that it opened, and the bytes are read here
without passing through it; small files, and files that cannot be read safely here, are streamed.
Both end at the size that the file had when it was opened, and early if it shrinks.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from sandkasten.disk.read_buffer import ReadBuffer
from sandkasten.disk.received_file import MOST_AT_ONCE, ReceivedFile, accept
from sandkasten.errors import ProtocolViolation
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.files.file_entries import FileBytes
from sandkasten_runtime.engine.storage.file_streams import open_event, pieces_of
from sandkasten_runtime.wire.byte_streams import drop_descriptor
from sandkasten_runtime.wire.call import Data
from sandkasten_runtime.wire.messages import decode_entry, decode_identity
from sandkasten_runtime.wire.runner_errors import error_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten_runtime.wire.call import Call, CallEvent
    from sandkasten_runtime.wire.channel import Channel
    from sandkasten_runtime.wire.messages import FileStat


@dataclass(frozen=True, slots=True)
class OpenFile:
    entry: FileStat
    call: Call
    received: ReceivedFile | None

    async def content(self, offset: int, most: int) -> bytes:
        """Return the bytes from `offset`, at most `most`. Raise FileError or ProtocolViolation."""
        # Bounded by the caller: the size that a sandbox reports must not decide how much memory we
        # allocate.
        buffer = ReadBuffer(min(max(0, self.entry.size - offset), most), FileBytes)
        if self.received is not None:
            return buffer.taken(await _filled(self.received, buffer, offset))
        filled = 0
        async for item in self.call:
            if isinstance(item, Data):
                end = filled + len(item.data)
                if end > len(buffer.view):
                    raise ProtocolViolation("the runner sent more of a file than its size")
                buffer.view[filled:end] = item.data
                filled = end
        await self.call.result()
        return buffer.taken(filled)

    async def pieces(self, offset: int, limit: int | None) -> AsyncIterator[bytes]:
        """Yield the bytes as they are needed. Raise as `content`."""
        if self.received is None:
            async for piece in pieces_of(self.call):
                yield piece
            return
        remaining = max(0, self.entry.size - offset)
        if limit is not None:
            remaining = min(remaining, limit)
        while remaining:
            # A sandbox that has ended, or was paused, ends the transfer.
            self.call.check()
            buffer = ReadBuffer(min(remaining, MOST_AT_ONCE))
            filled = await _filled(self.received, buffer, offset)
            if not filled:
                break
            offset += filled
            remaining -= filled
            yield buffer.taken(filled)
            # What is in memory was read without waiting: others have a turn before more is.
            await asyncio.sleep(0)
        await self.call.end()
        await self.call.result()


@asynccontextmanager
async def opened(
    channel: Channel, fields: Mapping[str, object], *, hold: bool
) -> AsyncIterator[OpenFile]:
    """Open a file with the fields of `fs.read`. The runner's refusal is raised here.

    With `hold` the sandbox counts as busy until the block ends, however slowly the file is read.
    """
    async with AsyncExitStack() as stack:
        if channel.passes_descriptors:
            asking = {**fields, "descriptor": True, "hold": hold}
            call = channel.stream("fs.read", asking, descriptor=True)
            event = await open_event(await stack.enter_async_context(call))
            received = None
            if event.body.get("descriptor") is not None:
                received = _received(call, event)
                if received is not None:
                    stack.callback(received.close)
            if received is not None or event.body.get("descriptor") is None:
                yield OpenFile(_entry_of(event), call, received)
                return
            # It was lost on the way, or is not one that we read. One more request, and no others.
            channel.passes_descriptors = False
            call.leave()
        call = await stack.enter_async_context(channel.stream("fs.read", fields))
        yield OpenFile(_entry_of(await open_event(call)), call, None)


def _entry_of(event: CallEvent) -> FileStat:
    return decode_entry(event.body.get("entry") or {})


def _received(call: Call, event: CallEvent) -> ReceivedFile | None:
    identity = decode_identity(event.body.get("descriptor"))
    descriptor = call.take_descriptor()
    if descriptor is None:
        return None
    received = accept(descriptor, identity.device, identity.inode)
    if received is None:
        drop_descriptor(descriptor)
    return received


async def _filled(file: ReceivedFile, buffer: ReadBuffer, offset: int) -> int:
    """Fill the buffer as far as the file goes; only a worker thread waits for the disk."""
    size = len(buffer.view)
    try:
        filled = file.read_cached(buffer.view, offset) if size <= MOST_AT_ONCE else 0
        if filled < size:
            filled += await asyncio.to_thread(_read_rest, file, buffer, filled, offset)
    except OSError as exc:
        raise error_for("io", f"read: {exc.strerror}", "fs.read", errno=exc.errno) from exc
    return filled


def _read_rest(file: ReceivedFile, buffer: ReadBuffer, filled: int, offset: int) -> int:
    # The buffer is an argument because its view does not keep the memory: a caller that is
    # cancelled lets go of it while the thread still reads.
    return file.read(buffer.view[filled:], offset + filled)
