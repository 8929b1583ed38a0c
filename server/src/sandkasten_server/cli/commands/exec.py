"""`exec`, `logs` and `kill`: one command in a sandbox, connected to our streams or not.

Ctrl-C is sent to a command that is waited for, whose status becomes ours; a command that loses us
to SIGTERM is ended. Input is passed on unless
it is a terminal; `-it` connects the terminal itself. `-d` prints the command's id and returns.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import Conflict, ExecNotFound, InvalidRequest, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.ids import is_cell_id
from sandkasten_server.cli.exit_status import status_of
from sandkasten_server.cli.output import put, put_json, tell, tell_network, write_chunk
from sandkasten_server.cli.sandbox_names import resolve
from sandkasten_server.cli.stdin import blocks, is_prepared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.client.process import AsyncProcess
    from sandkasten.client.results import Output, Result
    from sandkasten.client.sandbox import AsyncSandbox
    from sandkasten.client.server.transport import Transport
    from sandkasten.model.commands.exec_values import CommandKeywords, Why
    from sandkasten_server.cli.begun_command import BegunCommand
    from sandkasten_server.cli.state import State


# How long a command has to end after SIGTERM before it is killed.
TERM_GRACE_S: Final = 2.0
# A command that waits longer than this for its shell gets a note.
_QUIET_S: Final = 2.0
# The most that a sandbox keeps for a slow reader: output never blocks a command.
KEPT_BYTES: Final = 8 * 1024 * 1024
_SWITCHES: Final = {"inspect": "--inspect", "dry_run": "--dry-run"}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The arguments after `exec ID`."""

    command: str | tuple[str, ...]
    options: CommandKeywords
    stdin: bool = False
    """Pass on standard input, whatever it is; otherwise only a pipe or a file."""


async def execute(state: State, start: str, line: CommandLine) -> int:
    """Run a command until its end."""
    box = await _attach(state, start)
    piped = line.stdin or is_prepared()
    options: CommandKeywords = {**line.options, "max_output_bytes": KEPT_BYTES}
    if options.get("timeout_seconds") is None and box.known is not None:
        # It is waited for, so it has the deadline of such a command.
        options["timeout_seconds"] = box.known.limits.exec_timeout_s
    if isinstance(line.command, str) and line.options.get("user") is None:
        options["stateful"] = True
    process = await box.start(line.command, keep_stdin_open=piped, **options)
    waiting = None
    if isinstance(line.command, str) and sys.stderr.isatty():
        waiting = asyncio.create_task(_note_queue(process, str(options.get("shell"))))
    try:
        result = await accompany(state, process, piped=piped)
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    network = None if box.known is None else box.known.network
    return show(state, result, box.id, network)


async def finish(state: State, start: str, line: CommandLine, started: BegunCommand) -> int:
    """Run a command to its end that another program has begun."""
    started.connect(state)
    if started.exec_id:
        return await resume(state, start, started.exec_id, started.seen)
    options: CommandKeywords = {**line.options, "idempotency_key": started.key}
    return await execute(state, start, replace(line, options=options))


async def resume(state: State, sandbox_id: str, exec_id: str, last_seq: int) -> int:
    """Follow a command to its end, of which the beginning has been shown."""
    from sandkasten.client.process import AsyncProcess
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    connection = getattr(transport, "connection", None)
    if connection is not None:
        # Wait for it, as during a restart.
        connection.answered()
    process = AsyncProcess(_Handle(sandbox_id, transport), exec_id)
    result = await accompany(state, process, piped=False, since_seq=last_seq)
    network = None
    if result.refused:
        with suppress(SandkastenError):  # The sandbox may have ended.
            network = (await transport.get(sandbox_id)).network
    return show(state, result, sandbox_id, network)


@dataclass(frozen=True, slots=True)
class _Handle:
    id: str
    _transport: Transport

    async def transport(self) -> Transport:
        return self._transport


def show(state: State, result: Result, sandbox_id: str = "", network: object = None) -> int:
    """Print what the output does not show, and return the exit status.

    `network` has the rules of the sandbox, if they are known.
    """
    if state.json:
        put_json(result.as_dict())
    else:
        _explain(result, sandbox_id, network, interrupted=state.interrupted)
    return status_of(result.exit_code, result.signal, timed_out=result.timed_out)


async def _note_queue(process: AsyncProcess, shell: str) -> None:
    """Show why nothing happens: the shell is busy with another command."""
    await asyncio.sleep(_QUIET_S)
    now = await process.poll()
    # Its time runs only from its turn on.
    if now.running and now.duration_ms == 0:
        tell("note", f"the shell {shell} is busy with another command; this one waits for it")
        tell("hint", "--shell NAME uses another shell, -d runs it in the background")


async def detach(state: State, start: str, line: CommandLine) -> None:
    """Start a command in the background and print its id."""
    box = await _attach(state, start)
    process = await box.start(line.command, **line.options)
    if state.json:
        put_json({"sandbox_id": box.id, "exec_id": process.exec_id})
    else:
        put(process.exec_id)


async def logs(state: State, start: str, exec_start: str | None, *, follow: bool) -> None:
    """Print the kept output of a command (default: the newest), and with `follow` the rest."""
    process = await _process(state, start, exec_start)
    if state.json:
        put_json((await (process.wait() if follow else process.poll())).as_dict())
        return
    if not follow:
        for piece in await process.output():
            _pass_on(piece)
        return
    async with process.follow() as stream:
        async for piece in stream:
            _pass_on(piece)


async def kill(state: State, start: str, exec_start: str, signal_: str) -> None:
    """Send a signal to everything that a command started."""
    process = await _process(state, start, exec_start)
    if not (await process.poll()).running:
        raise Conflict(
            f"command {process.exec_id} has already ended",
            hint=f"read its output with: sandkasten logs {start} {process.exec_id}",
        )
    await process.signal(_signal(signal_))
    if state.json:
        put_json({"exec_id": process.exec_id, "signal": signal_})
    else:
        put(process.exec_id)


async def close_shell(state: State, start: str, name: str) -> None:
    """End a persistent shell with its jobs."""
    box = await _attach(state, start)
    await box.close_shell(name)
    if state.json:
        put_json({"sandbox_id": box.id, "shell": name})
    else:
        put(name)


async def _attach(state: State, start: str) -> AsyncSandbox:
    from sandkasten.client.sandbox import AsyncSandbox

    return await AsyncSandbox.attach(await resolve(state, start), **state.where)


async def _process(state: State, start: str, exec_start: str | None) -> AsyncProcess:
    box = await _attach(state, start)
    ran = sorted(await box.execs(), key=lambda entry: entry.started_at)
    if not exec_start:
        ran = [entry for entry in ran if entry.kind == "command"]
    chosen = _pick(exec_start, [entry.exec_id for entry in ran])
    if is_cell_id(chosen):
        raise InvalidRequest(
            f"{chosen} is code in a context, not a command",
            hint=f"if it was recorded, its output is in: sandkasten replay {box.id}",
        )
    return box.process(chosen)


def _pick(start: str | None, ids: Sequence[str]) -> str:
    """Return the id with this prefix; without one the last id."""
    if start is not None and start in ids:
        return start
    matches = [exec_id for exec_id in ids if exec_id.startswith(start)] if start else list(ids[-1:])
    if not matches:
        raise ExecNotFound(
            f"no command has the id {start[:80]!r}" if start else "no command ran in this sandbox",
            hint="list them with: sandkasten inspect ID",
        )
    if len(matches) > 1:
        raise InvalidRequest(
            f"{start!r} is the prefix of {len(matches)} commands",
            hint=f"one of {', '.join(matches[:5])}",
        )
    return matches[0]


def _signal(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


async def accompany(
    state: State, process: AsyncProcess, *, piped: bool, since_seq: int = 0
) -> Result:
    """Forward output (not if it will be part of JSON), input and Ctrl-C until the command ends."""
    loop = asyncio.get_running_loop()
    errands: set[asyncio.Task[None]] = set()

    def interrupted() -> None:
        state.interrupted = True
        errands.add(asyncio.create_task(_interrupt(process)))

    loop.add_signal_handler(signal.SIGINT, interrupted)
    if piped:
        errands.add(asyncio.create_task(_feed(process)))
    try:
        async with process.follow(since_seq) as stream:
            async for piece in stream:
                if not state.json:
                    _pass_on(piece)
            return stream.result
    except BrokenPipeError:
        # The reader has left, as with `yes | head`: the output would go nowhere.
        await process.signal(signal.SIGPIPE)
        raise
    except asyncio.CancelledError:
        # SIGTERM or SIGHUP ends this process, which would leave the command behind.
        await _end(process)
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        for errand in errands:
            errand.cancel()
        await asyncio.gather(*errands, return_exceptions=True)


def _pass_on(piece: Output) -> None:
    write_chunk(piece.stream, piece.data, piece.gap_bytes)


async def _end(process: AsyncProcess) -> None:
    with suppress(SandkastenError):
        await process.signal(signal.SIGTERM)
        if (await process.wait(TERM_GRACE_S)).running:
            await process.kill()


async def _interrupt(process: AsyncProcess) -> None:
    with suppress(SandkastenError):  # It may have ended just now.
        await process.signal(signal.SIGINT)


async def _feed(process: AsyncProcess) -> None:
    """Copy stdin to the command until either ends."""
    with suppress(SandkastenError):
        with suppress(OSError):
            async for data in blocks():
                await process.write_stdin(data)
        await process.close_stdin()


def _explain(result: Result, sandbox_id: str, network: object, *, interrupted: bool) -> None:
    """Print why the command ended, if neither its exit status nor a Ctrl-C of the user shows it."""
    why = None if interrupted and _is_signal(result.why) else result.why
    is_error = why is not None and why.code != "SHELL_EXIT"
    if result.shell_reset:
        tell("warning", "the persistent shell was replaced; its variables and jobs are gone")
    if why is not None and (is_error or not result.shell_reset):
        tell("error" if is_error else "warning", why.message)
    if why is not None and why.hint:
        tell("hint", why.hint)
    allow = None if network is None else partial(allow_command, sandbox_id, network)
    tell_network(result.refused, result.suggested, result.network_hint, allow)


def allow_command(sandbox_id: str, network: object, rules: Sequence[str]) -> str:
    """Return the command that adds these rules: `update` replaces all rules of a sandbox."""
    now: dict[str, Any] = network if isinstance(network, dict) else {}
    flags: dict[str, Sequence[str]] = {"--allow": [*now.get("allow", ()), *rules]}
    flags |= {"--deny": now.get("deny", ()), "--secret": now.get("secrets", ())}
    limits = now.get("limits", {}).items()
    flags["--network-limit"] = [f"{name}={value}" for name, value in limits]
    words = [word for flag, values in flags.items() for value in values for word in (flag, value)]
    words += [flag for name, flag in _SWITCHES.items() if now.get(name)]
    return shlex.join(["sandkasten", "update", sandbox_id, *words])


def _is_signal(why: Why | None) -> bool:
    return why is not None and why.code == "SIGNAL"
