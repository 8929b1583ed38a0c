"""Check that an engine still answers while streams through it are open.

A stream through a hanging engine is silent, and so is one to a command without output; only the
engine can tell which it is. If the engine does not answer, its streams are cut, so that callers
learn it at once instead of at their own deadline. Knows no sandbox and raises nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakSet

from sandkasten.errors import SandkastenError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiodocker.stream import Stream

# Fractions of the request deadline: both together are less than it.
_BEAT_SHARE, _ANSWER_SHARE = 0.25, 0.5
_BEAT_MAX_S = 15.0


class DockerHealthCheck:
    """`ask` returns when the engine has answered anything, and raises SandkastenError if not."""

    def __init__(self, ask: Callable[[], Awaitable[object]], timeout_s: float) -> None:
        self._ask = ask
        self._beat_s = min(timeout_s * _BEAT_SHARE, _BEAT_MAX_S)
        self._answer_s = timeout_s * _ANSWER_SHARE
        self._streams: WeakSet[Stream] = WeakSet()
        self._beating: asyncio.Task[None] | None = None

    def follow(self, stream: Stream) -> None:
        self._streams.add(stream)
        if self._beating is None or self._beating.done():
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def aclose(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})

    def _open(self) -> list[Stream]:
        return [stream for stream in self._streams if not stream._closed]

    async def _beat(self) -> None:
        while self._open():
            await asyncio.sleep(self._beat_s)
            streams = self._open()
            try:
                async with asyncio.timeout(self._answer_s):
                    await self._ask()
            except (TimeoutError, SandkastenError) as exc:
                for stream in streams:
                    _cut(stream, f"the Docker Engine does not answer ({exc or 'in time'})")


def _cut(stream: Stream, why: str) -> None:
    queue, response = stream._queue, stream._resp
    if queue is not None:
        queue.set_exception(ConnectionResetError(why))
    transport = (
        None if response is None or response.connection is None else (response.connection.transport)
    )
    if transport is not None:
        # Unsent data would wait for an engine that reads nothing.
        transport.abort()
