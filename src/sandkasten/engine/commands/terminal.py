"""An interactive program on a terminal inside a sandbox: bytes both ways, resize, exit status.

Leaving hangs up, as closing a terminal window does: SIGHUP, then SIGKILL for programs that ignore
it.
"""

from __future__ import annotations

import signal as signals
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from sandkasten.engine.commands.exec_results import ending_of, result_of
from sandkasten.engine.commands.execution import CALL_TIMEOUT_S
from sandkasten.errors import InvalidRequest, ProtocolViolation, SandkastenError, ShellNotFound
from sandkasten.model.commands.command import checked_pty
from sandkasten.model.commands.exec_values import ExecResult, Pty
from sandkasten.model.commands.kept_output import KeptOutput
from sandkasten.model.commands.verdict import verdict
from sandkasten.model.environment import checked_environment, text_bytes
from sandkasten.model.files.sandbox_paths import working_directory
from sandkasten.model.ids import new_exec_id
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.wire.call import Call, CallEvent, OutputChunk
from sandkasten.wire.json_bodies import to_bytes_json
from sandkasten.wire.messages import decode_exec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten.engine.handles import Handles
    from sandkasten.model.sandbox.limits import Limits
    from sandkasten.wire.channel import Channel

HANGUP_GRACE_S = 0.5
DEFAULT_TERM = "xterm-256color"


class Terminal:
    """Iterate it to read what the program writes. One task may iterate while another sends."""

    def __init__(self, call: Call, channel: Channel, exec_id: str, limits: Limits) -> None:
        self.exec_id = exec_id
        self.ended = False
        self._call = call
        self._channel = channel
        self._limits = limits
        self._reply: dict[str, object] | None = None

    async def send(self, data: bytes) -> None:
        await self._call.send(data)

    async def resize(self, rows: int, cols: int) -> None:
        pty = checked_pty(Pty(rows, cols))
        await self._channel.call(
            "exec.resize",
            {"exec_id": self.exec_id, "rows": pty.rows, "cols": pty.cols},
            timeout_s=CALL_TIMEOUT_S,
        )

    async def signal(self, number: int) -> None:
        await self._channel.call(
            "exec.signal", {"exec_id": self.exec_id, "signal": number}, timeout_s=CALL_TIMEOUT_S
        )

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for item in self._call:
            if isinstance(item, OutputChunk):
                yield item.data
        self.ended = True

    async def result(self) -> ExecResult:
        """Wait for the end and drop unread output. The result's output is empty."""
        reply = decode_exec(await self._call.result())
        self.ended = True
        why = verdict(ending_of(reply), self._limits)
        return result_of(reply, KeptOutput(0, 0), raw=True, why=why)


@asynccontextmanager
async def open_terminal(
    handles: Handles,
    sandbox_id: str,
    *,
    command: tuple[str, ...] | None,
    rows: int,
    cols: int,
    env: Mapping[str, str] | None,
    cwd: str | None,
) -> AsyncIterator[Terminal]:
    """Start `command` (by default the image's shell) on a terminal. The terminal lives until the
    program ends, the caller leaves, or the sandbox ends.
    """
    handle, channel = await handles.connect(sandbox_id)
    fields = terminal_fields(channel, command, Pty(rows, cols), env, cwd)
    exec_id = str(fields["exec_id"])
    async with handles.explaining(handle), channel.stream("exec.start", fields) as call:
        await _started(call)
        terminal = Terminal(call, channel, exec_id, handle.record.limits)
        try:
            yield terminal
        finally:
            if not terminal.ended:
                await hang_up(channel, exec_id)


def terminal_fields(
    channel: Channel,
    command: tuple[str, ...] | None,
    pty: Pty,
    env: Mapping[str, str] | None,
    cwd: str | None,
) -> dict[str, object]:
    """Return the body of `exec.start` for a program on a terminal, with a new exec id."""
    if command is None:
        if channel.hello.shell is None:
            raise ShellNotFound("the image has no shell", hint="name a program to run")
        command = (channel.hello.shell,)
    if not command or not command[0]:
        raise InvalidRequest("the command is empty", hint="name a program to run")
    for part in command:
        text_bytes("an argument of the command", part)
    pty = checked_pty(pty)
    variables = {"TERM": DEFAULT_TERM, **checked_environment(env or {})}
    return {
        "exec_id": new_exec_id(),
        "argv": [to_bytes_json(part) for part in command],
        "env": {name: to_bytes_json(value) for name, value in variables.items()},
        "cwd": to_bytes_json(working_directory(cwd) if cwd is not None else WORKSPACE),
        "stdin": "stream",
        "pty": {"rows": pty.rows, "cols": pty.cols},
    }


async def _started(call: Call) -> None:
    async for item in call:
        if isinstance(item, CallEvent) and item.name == "started":
            return
    raise ProtocolViolation("the runner ended a terminal before it began")


async def hang_up(channel: Channel, exec_id: str) -> None:
    # The program or the whole sandbox may have ended meanwhile; then there is nothing to do.
    with suppress(SandkastenError):
        for number in (signals.SIGHUP, signals.SIGKILL):
            await channel.call(
                "exec.signal", {"exec_id": exec_id, "signal": int(number)}, timeout_s=CALL_TIMEOUT_S
            )
            reply = await channel.call(
                "exec.wait",
                {"exec_id": exec_id, "timeout_ms": int(HANGUP_GRACE_S * 1000)},
                timeout_s=CALL_TIMEOUT_S,
            )
            if decode_exec(reply).ended:
                return
