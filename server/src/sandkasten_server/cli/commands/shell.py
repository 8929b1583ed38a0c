"""`shell` and `exec -it`: a terminal inside a sandbox, connected to the local one.

All keys are sent, Ctrl-C too, and the size follows the local terminal. Output of the sandbox
reaches the terminal unfiltered, as with any remote login. The local terminal is restored at the
end. Input that is not a terminal goes to a shell without one.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import SandkastenError
from sandkasten_server.cli.commands.exec import accompany
from sandkasten_server.cli.create_progress import create_progress
from sandkasten_server.cli.exit_status import UsageError, status_of
from sandkasten_server.cli.output import say
from sandkasten_server.cli.sandbox_names import resolve
from sandkasten_server.cli.stdin import STDIN, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sandkasten.client.process import AsyncTerminal
    from sandkasten.client.results import Result
    from sandkasten.client.sandbox import AsyncSandbox
    from sandkasten_server.cli.state import State

END_OF_INPUT: Final = b"\x04"
_BEST_SHELL: Final = "command -v bash >/dev/null 2>&1 && exec bash; exec sh"
# Run by a shell that gets the command line as its first argument.
_ONE_LINE: Final = 'command -v bash >/dev/null 2>&1 && exec bash -c "$0"; exec sh -c "$0"'
# A program by itself needs no shell, which the image may not have.
_PROGRAM: Final = re.compile(r"[\w./+-]+")


async def shell(state: State, start: str | None, options: dict[str, Any]) -> int:
    from sandkasten.client.sandbox import AsyncSandbox

    async with AsyncExitStack() as stack:
        if start is None:
            async with create_progress(state, options):
                box = await stack.enter_async_context(AsyncSandbox(**options, **state.where))
            say(f"sandbox {box.id}: destroyed when this shell ends")
        else:
            box = await AsyncSandbox.attach(await resolve(state, start), **state.where)
        return await (_typed(box) if os.isatty(STDIN) else _piped(state, box))


async def execute(state: State, start: str, command: Sequence[str], options: dict[str, Any]) -> int:
    """Run a program in a sandbox on our terminal, for `exec -it`.

    One word is a command line: a separate shell runs it where the persistent shell is.
    """
    from sandkasten.client.sandbox import AsyncSandbox

    if not os.isatty(STDIN):
        raise UsageError(
            "-t requires a terminal as standard input", hint="leave it out, or use -i alone"
        )
    box = await AsyncSandbox.attach(await resolve(state, start), **state.where)
    if len(command) == 1:
        info = box.known or await box.info()
        options = {**options, "cwd": options["cwd"] or info.cwd}
        if not _PROGRAM.fullmatch(command[0]):
            command = ["/bin/sh", "-c", _ONE_LINE, *command]
    return await _typed(box, command, **options)


async def _typed(
    box: AsyncSandbox,
    command: Sequence[str] | None = None,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Connect our terminal to a program on a terminal inside; default: a login shell."""
    size = _size()
    variables = {"TERM": os.environ.get("TERM", "xterm"), "PS1": f"{box.id[:12]}:$PWD$ "}
    terminal = box.terminal(
        command, rows=size.lines, cols=size.columns, env={**variables, **(env or {})}, cwd=cwd
    )
    async with terminal as opened:
        with _raw(STDIN):
            result = await _join(opened)
    return status_of(result.exit_code, result.signal, timed_out=result.timed_out)


async def _piped(state: State, box: AsyncSandbox) -> int:
    """Run a shell that reads its commands from our standard input until its end.

    A terminal would swallow an end of input that comes before the shell is ready.
    """
    process = await box.start(["/bin/sh", "-c", _BEST_SHELL], keep_stdin_open=True)
    result = await accompany(state, process, piped=True)
    return status_of(result.exit_code, result.signal, timed_out=result.timed_out)


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Put the terminal into raw mode."""
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

    def resized() -> None:
        errands.add(asyncio.create_task(_resize(terminal)))

    loop.add_signal_handler(signal.SIGWINCH, resized)
    try:
        async for data in terminal:
            _write(data)
        return await terminal.result()
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
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
