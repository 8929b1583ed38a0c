"""`exec`: one command in a sandbox, with its streams connected to ours.

Ctrl-C is sent to the command, whose status becomes ours. Input is passed on unless it is a
terminal (`shell` is for terminals).
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


# The most that a sandbox keeps for a slow reader: output never blocks a command.
KEPT_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The arguments after `exec ID`."""

    command: str | tuple[str, ...]
    options: CommandKeywords


async def execute(state: State, start: str, line: CommandLine) -> int:
    from sandkasten.client.sandbox import AsyncSandbox

    box = await AsyncSandbox.attach(await resolve(state, start), **state.where)
    piped = is_prepared()
    options: CommandKeywords = {**line.options, "max_output_bytes": KEPT_BYTES}
    if options.get("timeout_seconds") is None and box.known is not None:
        # It is waited for, so it has the deadline of such a command.
        options["timeout_seconds"] = box.known.limits.exec_timeout_s
    if isinstance(line.command, str):
        options["stateful"] = True
    process = await box.start(line.command, keep_stdin_open=piped, **options)
    result = await _accompany(process, piped=piped, quiet=state.json)
    if state.json:
        put_json(result.as_dict())
    else:
        _explain(result)
    return status_of(result.exit_code, result.signal, timed_out=result.timed_out)


async def _accompany(process: AsyncProcess, *, piped: bool, quiet: bool) -> Result:
    """Forward output, input and Ctrl-C until the command ends."""
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
        # The reader has left, as with `yes | head`: the output would go nowhere.
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
    """Copy stdin to the command until either ends."""
    with suppress(SandkastenError):
        async for data in blocks():
            await process.write_stdin(data)
        await process.close_stdin()


def _explain(result: Result) -> None:
    """Print why the command ended, if its exit status does not tell."""
    ours = result.why is not None and result.why.code != "SHELL_EXIT"
    if result.shell_reset:
        say("warning: the persistent shell was replaced; its variables and jobs are gone")
    if result.why is not None and (ours or not result.shell_reset):
        say(f"{'error' if ours else 'warning'}: {visible(result.why.message)}")
    if result.why is not None and result.why.hint:
        say(f"hint: {visible(result.why.hint)}")
