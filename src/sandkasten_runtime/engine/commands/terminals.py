"""Interactive programs on a terminal inside a sandbox: bytes both ways, resize, exit status.

`open_terminal` ends with its caller: leaving hangs up, as closing a terminal window does, with
SIGHUP and then SIGKILL for programs that ignore it. `TerminalSessions` outlive their viewers:
start, attach, detach, attach again. There the runner owns the program and its output, and this
module only tracks viewers. When the last viewer detaches, the terminal is hung up after a delay; a
viewer that returns earlier finds it unchanged. A killed daemon hangs nothing up: the program stays
until a viewer attaches or the sandbox ends. Each terminal is recorded in the command history.
"""

from __future__ import annotations

import asyncio
import signal as signals
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from typing import TYPE_CHECKING

from sandkasten.errors import (
    CommandNotFound,
    ExecNotFound,
    InvalidRequest,
    ProtocolViolation,
    SandkastenError,
    ShellNotFound,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.commands.code_values import kernel_line
from sandkasten.model.commands.command import checked_pty
from sandkasten.model.commands.exec_values import ExecResult, Pty
from sandkasten.model.commands.kept_output import KeptOutput
from sandkasten.model.commands.missing_program import missing_program
from sandkasten.model.commands.verdict import verdict
from sandkasten.model.environment import checked_environment, text_bytes
from sandkasten.model.files.sandbox_paths import working_directory
from sandkasten.model.ids import exec_id as checked_exec_id
from sandkasten.model.ids import new_exec_id
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten_runtime.engine.activity import activity
from sandkasten_runtime.engine.audit_trail import RecordedCommand
from sandkasten_runtime.engine.commands.exec_endings import explain_end
from sandkasten_runtime.engine.commands.exec_results import ending_of, result_of
from sandkasten_runtime.engine.commands.execution import CALL_TIMEOUT_S
from sandkasten_runtime.wire.call import Call, CallEvent, OutputChunk
from sandkasten_runtime.wire.json_bodies import to_bytes_json
from sandkasten_runtime.wire.messages import decode_exec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten.model.journal_rows import ExecRow
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import OutputRecording
    from sandkasten_runtime.engine.commands.exec_history import ExecHistory
    from sandkasten_runtime.engine.commands.execution import Execution
    from sandkasten_runtime.engine.drain import Drain
    from sandkasten_runtime.engine.handles import Handle, Handles
    from sandkasten_runtime.wire.channel import Channel

HANGUP_GRACE_S = 0.5
DEFAULT_TERM = "xterm-256color"
# Understood by bash, dash and busybox. Start-up files of an image that set a prompt replace it.
_PROMPT = "{}:$PWD\\$ "
_PROMPT_CHARS = len("sbx_") + 4
# Output kept for a viewer that returns; a full screen is a few KiB.
KEPT_BYTES = 1 << 20


class Terminal:
    """Iterate it to read what the program writes. One task may iterate while another sends."""

    def __init__(
        self,
        call: Call,
        channel: Channel,
        exec_id: str,
        record: Record,
        history: ExecHistory,
        row: ExecRow | None,
    ) -> None:
        self.exec_id = exec_id
        self.ended = False
        self.recorded = False
        """True if its end is recorded."""
        self._history = history
        self._row = row
        self._call = call
        self._channel = channel
        self._record = record

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
        why = verdict(ending_of(reply), self._record.limits)
        result = result_of(reply, KeptOutput(0, 0), raw=True, why=why)
        self.recorded = True
        self._history.trail.exec_ended(self._record.tenant, self._record.id, result)
        if self._row is not None:
            self._history.ended(self._row, result)
        return result


@asynccontextmanager
async def open_terminal(
    handles: Handles,
    history: ExecHistory,
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
    fields = terminal_fields(sandbox_id, channel, command, Pty(rows, cols), env, cwd)
    exec_id = str(fields["exec_id"])
    line = command or (channel.hello.shell or "sh",)
    async with handles.explaining(handle), channel.stream("exec.start", fields) as call:
        recorded = RecordedCommand(line, terminal=True, env=env or ())
        with handles.trail.starting(handle.record, exec_id, recorded):
            try:
                await _started(call)
            except CommandNotFound as exc:
                raise missing_program(exc, line) from exc
        row = history.began(handle.record, exec_id, line, None)
        terminal = Terminal(call, channel, exec_id, handle.record, history, row)
        try:
            yield terminal
        finally:
            if not terminal.ended:
                await hang_up(channel, exec_id)
            if row is not None and not terminal.recorded:
                history.follow(row)


def terminal_fields(
    sandbox_id: str,
    channel: Channel,
    command: tuple[str, ...] | None,
    pty: Pty,
    env: Mapping[str, str] | None,
    cwd: str | None,
) -> dict[str, object]:
    """Return the body of `exec.start` for a program on a terminal, with a new exec id."""
    defaults = {"TERM": DEFAULT_TERM}
    if command is None:
        if channel.hello.shell is None:
            raise ShellNotFound("the image has no shell", hint="name a program to run")
        command = (channel.hello.shell,)
        defaults["PS1"] = _PROMPT.format(sandbox_id[:_PROMPT_CHARS])
    if not command or not command[0]:
        raise InvalidRequest("the command is empty", hint="name a program to run")
    for part in command:
        text_bytes("an argument of the command", part)
    pty = checked_pty(pty)
    variables = {**defaults, **checked_environment(env or {})}
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


# ---- terminals that outlive their viewers


@dataclass(frozen=True, slots=True)
class TerminalBytes:
    """Bytes of a terminal. `gap_bytes` before them were not kept."""

    data: bytes
    gap_bytes: int = 0


@dataclass(slots=True)
class _Watched:
    watchers: int = 0
    ending: asyncio.Task[None] | None = field(default=None)


class AttachedTerminal:
    """Iterate it to read what the program writes from `offset` on; then `result` is set."""

    def __init__(
        self,
        call: Call,
        handle: Handle,
        handles: Handles,
        offset: int,
        recording: OutputRecording | None = None,
    ) -> None:
        self._call = call
        self._recording = recording
        self._handle = handle
        self._handles = handles
        self.offset = offset
        self.ended = False

    async def __aiter__(self) -> AsyncIterator[TerminalBytes]:
        async for item in self._call:
            if not isinstance(item, OutputChunk):
                continue
            if self._recording is not None:
                self._recording.add(item.data, item.offset)
            end = item.offset + len(item.data)
            if end <= self.offset:
                continue
            data = item.data[max(0, self.offset - item.offset) :]
            gap = max(0, item.offset - self.offset)
            self.offset = end
            yield TerminalBytes(bytes(data), gap)
        self.ended = True

    async def result(self) -> ExecResult:
        reply = decode_exec(await self._call.result())
        self.ended = True
        why = await explain_end(self._handles, self._handle, reply)
        return result_of(reply, KeptOutput(0, 0), raw=True, why=why)


class TerminalSessions:
    def __init__(
        self, handles: Handles, execution: Execution, history: ExecHistory, in_flight: Drain
    ) -> None:
        self._handles = handles
        self._execution = execution
        self._history = history
        self._in_flight = in_flight
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._recordings: dict[tuple[str, str], OutputRecording] = {}

    async def start(
        self,
        sandbox_id: str,
        *,
        command: tuple[str, ...] | None = None,
        rows: int = 24,
        cols: int = 80,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> str:
        """Start a terminal. It runs when this returns; attach to it by its id.

        The image's shell does not count as activity before it gets input; a `command` does at once.
        """
        with activity(command is not None):
            return await self._start(sandbox_id, command, Pty(rows, cols), env, cwd)

    async def _start(
        self,
        sandbox_id: str,
        command: tuple[str, ...] | None,
        pty: Pty,
        env: Mapping[str, str] | None,
        cwd: str | None,
    ) -> str:
        self._in_flight.check()
        handle, channel = await self._handles.connect(sandbox_id)
        fields = terminal_fields(sandbox_id, channel, command, pty, env, cwd)
        fields |= {"follow": False, "stdout_cap": KEPT_BYTES}
        line = command or (channel.hello.shell or "sh",)
        recorded = RecordedCommand(line, terminal=True, env=env or ())
        with self._handles.trail.starting(handle.record, str(fields["exec_id"]), recorded):
            try:
                answer = await channel.call("exec.start", fields, timeout_s=CALL_TIMEOUT_S)
            except CommandNotFound as exc:
                raise missing_program(exc, line) from exc
            reply = decode_exec(answer)
        if command is None:
            handle.untyped.add(reply.exec_id)
        recording = self._handles.trail.recording(handle.record, reply.exec_id, line, pty)
        if recording is not None:
            self._recordings[sandbox_id, reply.exec_id] = recording
        row = self._history.began(handle.record, reply.exec_id, line, None)
        if row is not None:
            self._history.follow(row)
        return reply.exec_id

    @asynccontextmanager
    async def attach(
        self, sandbox_id: str, exec_id: str, *, offset: int = 0, keep_s: float = 60.0
    ) -> AsyncIterator[AttachedTerminal]:
        """Attach from byte `offset` of the output on. When the last viewer leaves, hang up after
        `keep_s`, or at once if it is a shell into which nothing was typed.

        Raise ExecNotFound if there is no such command (any more).
        """
        exec_id = checked_exec_id(exec_id)
        if kernel_line(exec_id) is not None:
            raise ExecNotFound("no terminal has that id", hint="list them with execs")
        with activity(False):
            handle, channel = await self._handles.connect(sandbox_id)
        key = (sandbox_id, exec_id)
        watched = self._watched.setdefault(key, _Watched())
        if watched.ending is not None:
            watched.ending.cancel()
            watched.ending = None
        watched.watchers += 1
        ended = False
        try:
            with activity(False):
                output = channel.stream("exec.output", {"exec_id": exec_id, "follow": True})
            async with self._handles.explaining(handle), output as call:
                recording = self._recordings.get(key)
                attached = AttachedTerminal(call, handle, self._handles, offset, recording)
                try:
                    yield attached
                finally:
                    ended = attached.ended
                    if ended and recording is not None:
                        recording.close()
                        self._recordings.pop(key, None)
        finally:
            watched.watchers -= 1
            if watched.watchers == 0:
                if ended:
                    self._watched.pop(key, None)
                    handle.untyped.discard(exec_id)
                else:
                    kept_s = 0 if exec_id in handle.untyped else keep_s
                    work = self._end_later(sandbox_id, exec_id, kept_s)
                    watched.ending = asyncio.get_running_loop().create_task(work)

    async def send(self, sandbox_id: str, exec_id: str, data: bytes) -> None:
        """Type into a terminal, which is an activity."""
        with activity(True):
            await self._execution.stdin(sandbox_id, exec_id, data)

    async def resize(self, sandbox_id: str, exec_id: str, rows: int, cols: int) -> None:
        _, channel = await self._handles.connect(sandbox_id)
        pty = checked_pty(Pty(rows, cols))
        fields = {"exec_id": checked_exec_id(exec_id), "rows": pty.rows, "cols": pty.cols}
        await channel.call("exec.resize", fields, timeout_s=CALL_TIMEOUT_S)
        recording = self._recordings.get((sandbox_id, exec_id))
        if recording is not None:
            recording.resize(pty.rows, pty.cols)

    async def hang_up(self, sandbox_id: str, exec_id: str) -> None:
        _, channel = await self._handles.connect(sandbox_id)
        await hang_up(channel, checked_exec_id(exec_id))

    async def aclose(self) -> None:
        """Detach without hanging up: the next daemon finds the terminals unchanged."""
        ending = [
            terminal.ending for terminal in self._watched.values() if terminal.ending is not None
        ]
        self._watched.clear()
        for recording in self._recordings.values():
            recording.close()
        self._recordings.clear()
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _end_later(self, sandbox_id: str, exec_id: str, keep_s: float) -> None:
        await asyncio.sleep(keep_s)
        self._watched.pop((sandbox_id, exec_id), None)
        recording = self._recordings.pop((sandbox_id, exec_id), None)
        if recording is not None:
            recording.close()
        # The sandbox may be gone, which ends the terminal too.
        with suppress(SandkastenError), activity(False):
            await self.hang_up(sandbox_id, exec_id)
            (await self._handles.get(sandbox_id)).untyped.discard(exec_id)
