"""`exec`: one command in a sandbox, its streams joined to ours as they flow.

Ctrl-C goes to the command, not to us: it ends as it sees fit, and its status is ours. Input
that is not a terminal is passed on; a terminal is not (that is what `shell` is for).
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandkasten.cli.output import put_json, say, visible
from sandkasten.cli.sandbox_names import resolve
from sandkasten.cli.state import State, status_of
from sandkasten.cli.stdin import blocks, is_prepared
from sandkasten.errors import SandkastenError

if TYPE_CHECKING:
    from sandkasten.client.process import AsyncProcess
    from sandkasten.client.results import Output, Result
    from sandkasten.model.commands.exec_values import CommandKeywords


# The most a sandbox keeps for a reader that lags behind: output never waits for us.
KEPT_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was typed after `exec ID`."""

    command: str | tuple[str, ...]
    options: CommandKeywords


async def execute(state: State, start: str, line: CommandLine) -> int:
    from sandkasten.client.sandbox import AsyncSandbox

    box = await AsyncSandbox.attach(await resolve(state, start), **state.where)
    piped = is_prepared()
    options: CommandKeywords = {**line.options, "max_output_bytes": KEPT_BYTES}
    process = await box.start(line.command, keep_stdin_open=piped, **options)
    result = await _accompany(process, piped=piped, quiet=state.json)
    if state.json:
        put_json(result.as_dict())
    else:
        _explain(result)
    return status_of(result.exit_code, result.signal, timed_out=result.timed_out)


async def _accompany(process: AsyncProcess, *, piped: bool, quiet: bool) -> Result:
    """Carry output, input and Ctrl-C until the command has ended."""
    loop = asyncio.get_running_loop()
    errands: set[asyncio.Task[None]] = set()

    def interrupted() -> None:
        errands.add(asyncio.create_task(_interrupt(process)))

    loop.add_signal_handler(signal.SIGINT, interrupted)
    if piped:
        errands.add(asyncio.create_task(_feed(process)))
    try:
        async with process.follow() as stream:
            async for piece in stream:
                if not quiet:
                    _pass_on(piece)
            return stream.result
    except BrokenPipeError:
        # Nobody reads any more, as with `yes | head`: the command would only run for itself.
        await process.signal(signal.SIGPIPE)
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        for errand in errands:
            errand.cancel()
        await asyncio.gather(*errands, return_exceptions=True)


def _pass_on(piece: Output) -> None:
    out = sys.stderr.buffer if piece.stream == "stderr" else sys.stdout.buffer
    if piece.gap_bytes:
        say(f"warning: {piece.gap_bytes} bytes of output were not kept")
    out.write(piece.data)
    out.flush()


async def _interrupt(process: AsyncProcess) -> None:
    with suppress(SandkastenError):  # It may have ended just now.
        await process.signal(signal.SIGINT)


async def _feed(process: AsyncProcess) -> None:
    """Our stdin to the command's, until either ends."""
    with suppress(SandkastenError):
        async for data in blocks():
            await process.write_stdin(data)
        await process.close_stdin()


def _explain(result: Result) -> None:
    """What a status alone does not say; the command's own failure needs no words of ours."""
    ours = result.why is not None and result.why.code != "SHELL_EXIT"
    if result.shell_reset:
        say("warning: the persistent shell was replaced; its variables and jobs are gone")
    if result.why is not None and (ours or not result.shell_reset):
        say(f"{'error' if ours else 'warning'}: {visible(result.why.message)}")
    if result.why is not None and result.why.hint:
        say(f"hint: {visible(result.why.hint)}")
