"""`shell`: a terminal inside a sandbox, connected to the local one.

All keys are sent, Ctrl-C too, and the size follows the local terminal. Output of the sandbox
reaches the terminal unfiltered, as with any remote login. The local terminal is restored at the
end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from sandkasten.cli.output import say
from sandkasten.cli.pull_progress import pull_progress
from sandkasten.cli.sandbox_names import resolve
from sandkasten.cli.state import State, status_of
from sandkasten.cli.stdin import STDIN, blocks
from sandkasten.errors import SandkastenError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandkasten.client.process import AsyncTerminal
    from sandkasten.client.results import Result

END_OF_INPUT: Final = b"\x04"


async def shell(state: State, start: str | None, options: dict[str, Any]) -> int:
    from sandkasten.client.sandbox import AsyncSandbox

    async with AsyncExitStack() as stack:
        if start is None:
            async with pull_progress(state, options.get("image")):
                box = await stack.enter_async_context(AsyncSandbox(**options, **state.where))
            say(f"sandbox {box.id}: destroyed when this shell ends")
        else:
            box = await AsyncSandbox.attach(await resolve(state, start), **state.where)
        size = _size()
        env = {"TERM": os.environ.get("TERM", "xterm")}
        terminal = box.terminal(rows=size.lines, cols=size.columns, env=env)
        opened = await stack.enter_async_context(terminal)
        with _raw(STDIN):
            result = await _join(opened)
    return status_of(result.exit_code, result.signal, timed_out=result.timed_out)


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Put the terminal into raw mode; no effect if input is not a terminal."""
    if not os.isatty(descriptor):
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    try:
        # Drain, not flush: keep what was typed while the sandbox was created.
        tty.setraw(descriptor, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def _join(terminal: AsyncTerminal) -> Result:
    loop = asyncio.get_running_loop()
    errands: set[asyncio.Task[None]] = {asyncio.create_task(_keys(terminal))}
    this = asyncio.current_task()

    def resized() -> None:
        errands.add(asyncio.create_task(_resize(terminal)))

    def ended() -> None:
        # A hang-up or a kill must also restore the terminal.
        if this is not None:
            this.cancel()

    loop.add_signal_handler(signal.SIGWINCH, resized)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended)
    try:
        async for data in terminal:
            _write(data)
        return await terminal.result()
    finally:
        for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        for errand in errands:
            errand.cancel()
        await asyncio.gather(*errands, return_exceptions=True)


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


async def _keys(terminal: AsyncTerminal) -> None:
    with suppress(SandkastenError, OSError):
        async for data in blocks():
            await terminal.send(data)
        await terminal.send(END_OF_INPUT)


def _size() -> os.terminal_size:
    """Return the size of the terminal; LINES and COLUMNS of the environment go stale."""
    with suppress(OSError):
        size = os.get_terminal_size(STDIN)
        if size.lines and size.columns:
            return size
    return os.terminal_size((80, 24))


async def _resize(terminal: AsyncTerminal) -> None:
    size = _size()
    with suppress(SandkastenError):
        await terminal.resize(size.lines, size.columns)
