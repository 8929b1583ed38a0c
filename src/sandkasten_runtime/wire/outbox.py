"""Whole frames onto one stream, in order, from many tasks.

A frame handed over here is sent completely even if its task is cancelled meanwhile, so a cancelled
upload cannot corrupt other calls. Knows no kinds and no ids. If the stream fails, `failed` is
called once and all waiting tasks wake to ask the channel for the cause.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from sandkasten_runtime.wire.byte_streams import Buffer, ByteStream, Immediate

if TYPE_CHECKING:
    from collections.abc import Callable

# Frames that no task waits for (CREDIT, CANCEL) accumulate if the runner stops reading. Each is 9
# to 13 bytes and answers far more traffic, so only a hostile runner gets this far.
MAX_POSTED_BYTES = 1024 * 1024


class Outbox:
    def __init__(self, stream: ByteStream, failed: Callable[[OSError], None]) -> None:
        self._stream = stream
        self._failed = failed
        self._now = stream if isinstance(stream, Immediate) else None
        self._queue: deque[tuple[tuple[Buffer, ...], asyncio.Future[None] | None]] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self._closed = False
        self._posted = 0

    def post(self, frame: bytes) -> None:
        """Send a small whole frame without waiting."""
        if not self._at_once((frame,), len(frame), None):
            self._posted += len(frame)
            if self._posted > MAX_POSTED_BYTES:
                self._fail(BlockingIOError("the runner stopped reading"))

    async def send(self, *parts: Buffer) -> None:
        """Return when the stream has accepted all of it, or when the outbox is closed."""
        size = len(parts[0]) if len(parts) == 1 else sum(len(part) for part in parts)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._at_once(parts, size, done):
            await done

    def _at_once(
        self, parts: tuple[Buffer, ...], size: int, done: asyncio.Future[None] | None
    ) -> bool:
        """Send what the stream accepts now and queue the rest; return True if nothing is left."""
        if self._closed:
            return True
        if self._now is not None and self._flushing is None:
            try:
                sent = self._now.send_nowait(*parts)
            except OSError as exc:
                self._fail(exc)
                return True
            if sent == size:
                return True
            parts = remainder(parts, sent)
        self._queue.append((parts, done))
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())
        return False

    async def _flush(self) -> None:
        try:
            while self._queue and not self._closed:
                parts, done = self._queue[0]
                await self._stream.send(*parts)
                if self._queue:
                    self._queue.popleft()
                if done is None:
                    self._posted = max(0, self._posted - sum(len(part) for part in parts))
                elif not done.done():
                    done.set_result(None)
        except OSError as exc:
            self._fail(exc)
        finally:
            self._flushing = None

    def _fail(self, error: OSError) -> None:
        if not self._closed:
            self.close()
            self._failed(error)

    def close(self) -> None:
        """Accept nothing more, drop the queue and wake its senders. Twice is fine."""
        self._closed = True
        while self._queue:
            done = self._queue.popleft()[1]
            if done is not None and not done.done():
                done.set_result(None)

    async def aclose(self) -> None:
        """Call `close` and end the flushing task if there is one."""
        self.close()
        task = self._flushing
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def remainder(parts: tuple[Buffer, ...], sent: int) -> tuple[Buffer, ...]:
    """Return what is left of `parts` after `sent` bytes, without copying."""
    remaining: list[Buffer] = []
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
        elif sent:
            remaining.append(memoryview(part)[sent:])
            sent = 0
        else:
            remaining.append(part)
    return tuple(remaining)
