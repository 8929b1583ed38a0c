"""MCP over stdin and stdout, for the client that started this process.

While it serves, file descriptor 1 is stderr and 0 is empty: only the protocol reaches the client,
and no other code reads its lines. Ends when the client closes its side: calls in progress are
cancelled and not answered any more, and a client that does not read cannot delay the end. A line
that is not a message is answered if it has an id, because the library ignores it.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final, cast

import anyio
from mcp.server.stdio import stdio_server
from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST, jsonrpc_message_adapter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from mcp.server.lowlevel import Server


# For answers that were complete when the input ended; a client that reads takes a millisecond.
_LAST_ANSWERS_S: Final = 1.0
_NOT_A_MESSAGE: Final = {
    "code": INVALID_REQUEST,
    "message": "the line is not one JSON-RPC message in Unicode; batches are not supported",
}
# A client does not send more requests in one line.
_MAX_REFUSALS: Final = 100
# Those of a 64-bit number.
_MAX_DIGITS: Final = 20


async def serve_stdio(server: Server[Any], at_end: Callable[[], Awaitable[None]]) -> None:
    """Serve until the input ends, then await `at_end`, whether or not the client still reads."""
    with _private_copy(0, os.devnull, os.O_RDONLY) as stdin, _private_copy(1) as stdout:
        reading = os.fdopen(stdin, encoding="utf-8", errors="replace", closefd=False)
        writing = os.fdopen(stdout, "w", encoding="utf-8", closefd=False)
        # The library uses only the methods that these have.
        answers = _Answers(writing)
        lines = _Lines(reading, answers)
        try:
            async with stdio_server(cast("Any", lines), cast("Any", answers)) as (read, write):
                await server.run(read, write, server.create_initialization_options())
                await at_end()
                # The library waits for its writer when the block ends.
                answers.drop_after(_LAST_ANSWERS_S)
            await answers.written()
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # A message arrived while the library was closing its streams.
            pass


class _Lines:
    """Lines of stdin, read by a daemon thread.

    The library's own thread would keep a stopping process alive until the client sends a line.
    """

    def __init__(self, file: IO[str], answers: _Answers) -> None:
        self._file = file
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(1)
        threading.Thread(target=self._read, name="mcp-stdin", daemon=True).start()

    def _read(self) -> None:
        # The loop may end or be closed meanwhile.
        with suppress(CancelledError, RuntimeError, ValueError, OSError):
            for line in self._file:
                if _is_message(line):
                    self._put(line)
                    continue
                for refusal in _refusals(line):
                    self._loop.call_soon_threadsafe(self._answers.begin, refusal)
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
        self._answers.end()


class _Answers:
    """Responses, written by a daemon thread.

    A client that does not read delays only its own responses. After a client has gone, writes fail
    silently and the end of stdin ends the server. What the library writes for the calls that it
    cancels then is dropped: the client does not wait for it.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._texts: queue.SimpleQueue[tuple[str, asyncio.Future[None]]] = queue.SimpleQueue()
        self._pending: set[asyncio.Future[None]] = set()
        self._input_ended = False
        self._dropping = False
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
        if self._dropping or (self._input_ended and _is_cancellation(text)):
            return
        await self.begin(text)

    def begin(self, text: str) -> asyncio.Future[None]:
        """Queue an answer, and return a future that is done when it is written."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._pending.add(done)
        done.add_done_callback(self._pending.discard)
        self._texts.put((text, done))
        return done

    def end(self) -> None:
        """Note that the input has ended."""
        self._input_ended = True

    def drop_after(self, delay_s: float) -> None:
        """Give the client that long to read the last answers, then drop what is left."""
        self._loop.call_later(delay_s, self._drop)

    async def written(self) -> None:
        """Wait until every answer is written or dropped."""
        while self._pending:
            await asyncio.wait(self._pending)

    def _drop(self) -> None:
        self._dropping = True
        for future in list(self._pending):
            _settle(future)

    async def flush(self) -> None:
        """Do nothing: `write` returns after the flush."""


def _is_message(line: str) -> bool:
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return False
    return True


def _refusals(line: str) -> list[str]:
    """Return error responses for the requests in a line that the library cannot decode.

    Such a request has half of a surrogate pair, a number of thousands of digits, or wrong fields,
    or it is in a batch.
    """
    try:
        decoded = json.loads(line, parse_int=_bounded_int)
    except (ValueError, RecursionError):
        return []
    several = decoded if isinstance(decoded, list) else [decoded]
    return [
        json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": _NOT_A_MESSAGE}) + "\n"
        for message in several[:_MAX_REFUSALS]
        if isinstance(message, dict) and "method" in message and _is_id(message.get("id"))
    ]


def _bounded_int(digits: str) -> int | None:
    return int(digits) if len(digits) < _MAX_DIGITS else None


def _is_id(value: object) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _is_cancellation(text: str) -> bool:
    """Return whether it reports to the client that the library cancelled a request at the end."""
    error = json.loads(text).get("error")
    return isinstance(error, dict) and error.get("code") == CONNECTION_CLOSED


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


@contextmanager
def _private_copy(fd: int, instead: str | None = None, flags: int = 0) -> Iterator[int]:
    """Yield a private copy of a standard stream, and put `instead` (or stderr) in its place."""
    copy = os.dup(fd)
    other = os.dup(2) if instead is None else os.open(instead, flags)
    os.dup2(other, fd)
    os.close(other)
    try:
        yield copy
    finally:
        # Not closed: a thread may still wait in it.
        os.dup2(copy, fd)
