"""MCP over this process's own stdin and stdout, for the one client that started it.

While it serves, file descriptor 1 is stderr and 0 is empty, so nothing but the protocol reaches
the client and nobody else takes its lines. Ends when the client closes its side.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, cast

import anyio
from mcp.server.stdio import stdio_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mcp.server.lowlevel import Server


async def serve_stdio(server: Server[Any]) -> None:
    with _our_own(0, os.devnull, os.O_RDONLY) as stdin, _our_own(1) as stdout:
        reading = os.fdopen(stdin, encoding="utf-8", errors="replace", closefd=False)
        writing = os.fdopen(stdout, "w", encoding="utf-8", closefd=False)
        # The library asks no more of its files than these have.
        lines, answers = cast("Any", _Lines(reading)), cast("Any", _Answers(writing))
        try:
            async with stdio_server(lines, answers) as (read, write):
                await server.run(read, write, server.create_initialization_options())
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # A message that comes while the library ends has nobody to go to, which is its end too.
            pass


class _Lines:
    """Lines from a thread of its own that nobody waits for: the library's would keep a process
    that was told to end until its client says something.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(1)
        threading.Thread(target=self._read, name="mcp-stdin", daemon=True).start()

    def _read(self) -> None:
        # A loop that ends or was closed meanwhile wants no more lines.
        with suppress(CancelledError, RuntimeError, ValueError, OSError):
            for line in self._file:
                self._put(line)
        with suppress(CancelledError, RuntimeError):
            self._put(None)

    def _put(self, line: str | None) -> None:
        putting = self._lines.put(line)
        try:
            asyncio.run_coroutine_threadsafe(putting, self._loop).result()
        except BaseException:
            putting.close()
            raise

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self._lines.get()) is not None:
            yield line


class _Answers:
    """Written by a thread of its own too. A client that reads nothing holds up its own answers
    and nothing else; to one that is gone nothing can be said, and stdin's end will tell.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._texts: queue.SimpleQueue[tuple[str, asyncio.Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._write, name="mcp-stdout", daemon=True).start()

    def _write(self) -> None:
        with suppress(RuntimeError):
            while True:
                text, done = self._texts.get()
                with suppress(OSError):
                    self._file.write(text)
                    self._file.flush()
                self._loop.call_soon_threadsafe(_settle, done)

    async def write(self, text: str) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        self._texts.put((text, done))
        await done

    async def flush(self) -> None:
        """Each text is on its way when `write` returns."""


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


@contextmanager
def _our_own(fd: int, instead: str | None = None, flags: int = 0) -> Iterator[int]:
    """A copy of a standard stream that nobody else knows; `instead` (or stderr) takes its place."""
    mine = os.dup(fd)
    other = os.dup(2) if instead is None else os.open(instead, flags)
    os.dup2(other, fd)
    os.close(other)
    try:
        yield mine
    finally:
        # Not closed: a thread may still wait in it.
        os.dup2(mine, fd)
