"""Commands while they run: followed, in the background, or on a terminal.

Each object is a handle; dropping a handle never stops the command. Errors are those of the
transport.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final, Protocol, Self

from sandkasten.client.results import Output, Result, result_of, signal_number
from sandkasten.client.stream_close import closing
from sandkasten.errors import InvalidRequest
from sandkasten.model.commands.exec_values import Chunk, ExecResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from sandkasten.client.server.transport import TerminalTransport, Transport
    from sandkasten.model.files.file_entries import Change

# One question to the server waits at most this long; a longer wait asks again.
WAIT_SLICE_S: Final = 300.0


class Handle(Protocol):
    """What a handle needs from its sandbox."""

    @property
    def id(self) -> str: ...
    async def transport(self) -> Transport: ...


class AsyncExecStream:
    """Output of one command as it comes; `result` is set when iteration has ended."""

    def __init__(
        self, box: Handle, begin: Callable[[Transport], AsyncIterator[Chunk | ExecResult]]
    ) -> None:
        self._box = box
        self._begin = begin
        self._pieces: AsyncGenerator[Output] | None = None
        self._result: Result | None = None

    @property
    def result(self) -> Result:
        if self._result is None:
            raise InvalidRequest(
                "the command has not ended yet", hint="iterate to the end, then read `result`"
            )
        return self._result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        if self._pieces is None:
            self._pieces = self._follow()
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Stop following. The command goes on."""
        if self._pieces is not None:
            await self._pieces.aclose()

    async def wait(self) -> Result:
        """Drop the rest of the output and wait for the end."""
        async for _ in self:
            pass
        return self.result

    async def _follow(self) -> AsyncGenerator[Output]:
        decoders: dict[str, codecs.IncrementalDecoder] = {}
        transport = await self._box.transport()
        async with closing(self._begin(transport)) as source:
            async for item in source:
                if isinstance(item, ExecResult):
                    self._result = result_of(item)
                    return
                yield _output(item, decoders)


def _output(chunk: Chunk, decoders: dict[str, codecs.IncrementalDecoder]) -> Output:
    decoder = decoders.get(chunk.source)
    if decoder is None:
        decoder = decoders[chunk.source] = codecs.getincrementaldecoder("utf-8")("replace")
    if chunk.gap_bytes:
        # What was held back belongs to bytes that are gone.
        decoder.reset()
    return Output(
        seq=chunk.seq,
        stream=chunk.source,
        data=chunk.data,
        text=decoder.decode(chunk.data),
        gap_bytes=chunk.gap_bytes,
    )


class AsyncProcess:
    """A command that runs in the background of its sandbox."""

    def __init__(self, box: Handle, exec_id: str) -> None:
        self._box = box
        self.exec_id: Final = exec_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._box.id}, {self.exec_id})"

    async def poll(self) -> Result:
        """Return its state now; see `running`."""
        transport = await self._box.transport()
        return result_of(await transport.exec_get(self._box.id, self.exec_id))

    async def wait(self, timeout_seconds: float | None = None) -> Result:
        """Wait for its end. If the time runs out first, the result shows that it still runs."""
        transport = await self._box.transport()
        remaining_s = timeout_seconds
        while True:
            step = WAIT_SLICE_S if remaining_s is None else min(WAIT_SLICE_S, remaining_s)
            answer = await transport.exec_get(self._box.id, self.exec_id, wait_s=step)
            if remaining_s is not None:
                remaining_s -= step
            if answer.status != "running" or (remaining_s is not None and remaining_s <= 0):
                return result_of(answer)

    async def output(self, since_seq: int = 0) -> list[Output]:
        """Return its kept output after `since_seq`, without waiting."""
        return [piece async for piece in self._read(since_seq, follow=False)]

    def follow(self, since_seq: int = 0) -> AsyncExecStream:
        """Follow its output from `since_seq` until it ends."""
        return self._read(since_seq, follow=True)

    def _read(self, since_seq: int, *, follow: bool) -> AsyncExecStream:
        return AsyncExecStream(
            self._box,
            lambda transport: transport.exec_output(
                self._box.id, self.exec_id, since_seq=since_seq, follow=follow
            ),
        )

    async def signal(self, signal: int | str) -> None:
        """Send a signal (15, "TERM", "SIGTERM") to everything the command started."""
        transport = await self._box.transport()
        await transport.exec_signal(self._box.id, self.exec_id, signal_number(signal))

    async def kill(self) -> None:
        await self.signal(9)

    async def write_stdin(self, data: str | bytes) -> None:
        """Write to its stdin; requires `keep_stdin_open` at the start."""
        transport = await self._box.transport()
        raw = data.encode() if isinstance(data, str) else data
        await transport.exec_stdin(self._box.id, self.exec_id, raw)

    async def close_stdin(self) -> None:
        transport = await self._box.transport()
        await transport.exec_stdin(self._box.id, self.exec_id, b"", close=True)


class AsyncTerminal:
    """A program on its own terminal, from `async with` to the end of the block."""

    def __init__(
        self,
        box: Handle,
        begin: Callable[[Transport], AbstractAsyncContextManager[TerminalTransport]],
    ) -> None:
        self._box = box
        self._begin = begin
        self._manager: AbstractAsyncContextManager[TerminalTransport] | None = None
        self._terminal: TerminalTransport | None = None
        self._pieces: AsyncIterator[bytes] | None = None

    async def __aenter__(self) -> AsyncTerminal:
        self._manager = self._begin(await self._box.transport())
        self._terminal = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # Left in the middle, the stream of output must end before what it reads from.
            close = getattr(self._pieces, "aclose", None)
            if close is not None:
                await close()
        finally:
            if self._manager is not None:
                await self._manager.__aexit__(kind, error, trace)

    @property
    def _open(self) -> TerminalTransport:
        if self._terminal is None:
            raise InvalidRequest("the terminal is not open", hint="use it inside a with block")
        return self._terminal

    @property
    def exec_id(self) -> str:
        return self._open.exec_id

    async def send(self, data: str | bytes) -> None:
        """Send input."""
        await self._open.send(data.encode() if isinstance(data, str) else data)

    async def resize(self, rows: int, cols: int) -> None:
        await self._open.resize(rows, cols)

    async def signal(self, signal: int | str) -> None:
        await self._open.signal(signal_number(signal))

    def __aiter__(self) -> AsyncTerminal:
        return self

    async def __anext__(self) -> bytes:
        if self._pieces is None:
            self._pieces = aiter(self._open)
        return await anext(self._pieces)

    async def result(self) -> Result:
        """Wait for the program to end and return its result."""
        return result_of(await self._open.result())


class AsyncWatch:
    """Changes to files as they happen, until closed."""

    def __init__(self, box: Handle, begin: Callable[[Transport], AsyncIterator[Change]]) -> None:
        self._box = box
        self._begin = begin
        self._changes: AsyncGenerator[Change] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        if self._changes is None:
            self._changes = self._follow()
        return await anext(self._changes)

    async def aclose(self) -> None:
        if self._changes is not None:
            await self._changes.aclose()

    async def _follow(self) -> AsyncGenerator[Change]:
        async with closing(self._begin(await self._box.transport())) as source:
            async for change in source:
                yield change
