"""Where the programs of the fake read and write: files, pipes, the output ring, nothing.

A read answers b"" at the end. A write to a pipe nobody reads raises BrokenPipe, which ends a
program as SIGPIPE would. Every read and write lets other tasks run, so that an endless
program can be killed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from sandkasten.backends.memory.pipe import Lane

if TYPE_CHECKING:
    from sandkasten.backends.memory.output import Output
    from sandkasten.backends.memory.tree import File, Tree

_READ_BYTES = 64 * 1024


class BrokenPipe(Exception):
    pass


class Source(Protocol):
    async def read(self) -> bytes: ...

    def unread(self, data: bytes) -> None:
        """Give back what was read too far; the next read answers it."""
        ...


class Sink(Protocol):
    async def write(self, data: bytes) -> None: ...


class Nothing:
    """/dev/null, and the stdin of a command that was given none."""

    def unread(self, data: bytes) -> None:
        return

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return b""

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)


class Zeros:
    def unread(self, data: bytes) -> None:
        return

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return bytes(_READ_BYTES)

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)


class ToOutput:
    def __init__(self, output: Output, source: int, *, newlines: bool = False) -> None:
        self._output = output
        self._source = source
        self._newlines = newlines

    async def write(self, data: bytes) -> None:
        if data:
            # A terminal in its usual mode sends a carriage return with each newline.
            text = data.replace(b"\n", b"\r\n") if self._newlines else data
            self._output.write(self._source, text)
        await asyncio.sleep(0)


class ToFile:
    def __init__(self, tree: Tree, file: File, path: bytes, *, append: bool) -> None:
        self._tree = tree
        self._file = file
        self._path = path
        self._at = len(file.data) if append else 0

    async def write(self, data: bytes) -> None:
        self._file.write(self._at, data)
        self._at += len(data)
        self._tree.changed("modified", self._path, self._file)
        await asyncio.sleep(0)


class FromFile:
    def __init__(self, file: File) -> None:
        self._file = file
        self._at = 0

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        piece = bytes(self._file.data[self._at : self._at + _READ_BYTES])
        self._at += len(piece)
        return piece

    def unread(self, data: bytes) -> None:
        self._at -= len(data)


class Pipe:
    """Both ends of a pipe between two programs; `close_read` and `close_write` end it."""

    def __init__(self) -> None:
        self._lane = Lane()
        self._unread = False

    @property
    def closed(self) -> bool:
        """No more can be written."""
        return self._unread or self._lane.ended

    async def read(self) -> bytes:
        return await self._lane.get(_READ_BYTES)

    def unread(self, data: bytes) -> None:
        self._lane.give_back(data)

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self.closed:
                raise BrokenPipe
            view = view[self._lane.put(view) :]
            if view:
                await self._lane.changed()
        await asyncio.sleep(0)

    def close_write(self) -> None:
        self._lane.end()

    def close_read(self) -> None:
        self._unread = True
        self._lane.wake()
