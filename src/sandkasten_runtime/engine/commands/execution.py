"""Commands: run and wait, run and follow, run in the background, and explain what ended them.

A success costs one exchange with the runner and nothing else: no row is written and no counter is
read. Counters are read only when a command failed in a way they could explain.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from sandkasten.errors import (
    CommandNotFound,
    Conflict,
    FileNotFound,
    InvalidRequest,
    ProtocolViolation,
    SandkastenError,
    ShellNotFound,
)
from sandkasten.model.commands.code_values import kernel_line
from sandkasten.model.commands.command import Command, checked_command, checked_shell, fingerprint
from sandkasten.model.commands.exec_values import Chunk, ExecRequest, ExecResult
from sandkasten.model.commands.kept_output import KeptOutput
from sandkasten.model.commands.missing_program import missing_program
from sandkasten.model.commands.verdict import Ending, verdict
from sandkasten.model.ids import exec_id as checked_exec_id
from sandkasten.model.ids import new_exec_id, new_look_id
from sandkasten.model.numbers import number, whole
from sandkasten.model.sandbox.limits import MAX_KEPT_BYTES
from sandkasten.ports import UNTRACED
from sandkasten_runtime.engine.audit_trail import RecordedCommand
from sandkasten_runtime.engine.commands.exec_endings import emit_finished, explain_end, with_network
from sandkasten_runtime.engine.commands.exec_follower import ExecFollower, check_same_command
from sandkasten_runtime.engine.commands.exec_results import (
    SOURCES,
    listed,
    lost_result,
    missing_end,
    result_of,
    start_fields,
)
from sandkasten_runtime.engine.commands.exec_spans import (
    exec_attributes,
    trace_request,
    trace_result,
    traced,
)
from sandkasten_runtime.engine.commands.exec_to_end import ExecToEnd
from sandkasten_runtime.engine.handles import ExecStart, Handle, Handles
from sandkasten_runtime.engine.sandbox_users import as_user
from sandkasten_runtime.wire.call import OutputChunk
from sandkasten_runtime.wire.frame_codec import SHELL_STATE
from sandkasten_runtime.wire.messages import decode_exec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sandkasten.model.commands.exec_values import ChunkReader
    from sandkasten.model.journal_rows import ExecRow
    from sandkasten.ports import EventSink, OutputRecording, Span, Tracing
    from sandkasten_runtime.engine.audit_trail import AuditTrail
    from sandkasten_runtime.engine.commands.exec_history import ExecHistory
    from sandkasten_runtime.wire.channel import Channel
    from sandkasten_runtime.wire.messages import ExecReply

# For verbs that the runner answers at once.
CALL_TIMEOUT_S = 30.0
MAX_WAIT_S = 86_400.0
# Open files of recordings of commands whose end no caller has read.
_MOST_RECORDED = 256


class Execution:
    def __init__(
        self,
        handles: Handles,
        history: ExecHistory,
        events: EventSink | None = None,
        ceiling: Mapping[str, int | float] = MappingProxyType({}),
        tracing: Tracing = UNTRACED,
        reachable: Sequence[str] = (),
    ) -> None:
        """`ceiling`: the operator's `policy.max`, for the output that a command may keep.
        `reachable`: the operator's `network.reachable`.
        """
        self.reachable = reachable
        self._trail = handles.trail
        self.to_end = ExecToEnd(handles.trail, history, events, ceiling, tracing)
        self._tracing = tracing
        self._handles = handles
        self.history = history
        self._events = events
        self._ceiling = ceiling

    async def run(
        self,
        sandbox_id: str,
        request: ExecRequest,
        show: ChunkReader | None = None,
        *,
        held: str | None = None,
        line: str | None = None,
        code: bytes | None = None,
    ) -> ExecResult:
        """Run it to its end, in the program `held` if the sandbox has that; `show` receives the
        output as it comes. `line`: what is recorded of one of our programs; `code`: what is
        recorded beside the command line, which only names it.
        """
        with self._tracing.begin("sandbox.exec") as span:
            following = await self._follow(sandbox_id, request, span, held)
            recorded = _recorded(following, line or request.command, request, code)
            with _RecordedExec(self.history, self._trail, following, recorded) as noted:
                async with aclosing(following.chunks()) as chunks:
                    async for chunk in chunks:
                        noted.saw(chunk)
                        if show is not None:
                            await show(chunk)
                result = noted.ended(await self._result(following))
                return self._told(sandbox_id, result, span)

    async def look(self, sandbox_id: str, request: ExecRequest) -> ExecResult:
        """Run one of our programs that prints what the sandbox is like.

        No client asked for it, so no list, history, audit log, metric or trace has it.
        """
        handle, channel = await self._handles.connect(sandbox_id)
        shell = channel.hello.shell or "sh"
        command = checked_command(request, handle.record.limits, shell, ceiling=self._ceiling)
        following = ExecFollower(self._handles, handle, new_look_id(), command)
        async with aclosing(following.chunks()) as chunks:
            async for _ in chunks:
                pass
        return await self._result(following)

    async def stream(
        self, sandbox_id: str, request: ExecRequest
    ) -> AsyncIterator[Chunk | ExecResult]:
        with self._tracing.begin("sandbox.exec") as span:
            following = await self._follow(sandbox_id, request, span)
            recorded = _recorded(following, request.command, request)
            with _RecordedExec(self.history, self._trail, following, recorded) as noted:
                async with aclosing(following.chunks()) as chunks:
                    async for chunk in chunks:
                        noted.saw(chunk)
                        yield chunk
                result = self._told(sandbox_id, noted.ended(await self._result(following)), span)
        yield result

    async def start(
        self,
        sandbox_id: str,
        request: ExecRequest,
        *,
        exec_id: str | None = None,
        line: str | None = None,
    ) -> ExecResult:
        """Start a command in the background. It runs when this returns; fetch its result by id.

        `line`: what is recorded of one of our programs.
        """
        with self._tracing.begin("sandbox.exec") as span:
            return await self._start(sandbox_id, request, exec_id, span, line)

    async def _start(
        self,
        sandbox_id: str,
        request: ExecRequest,
        exec_id: str | None,
        span: Span,
        line: str | None,
    ) -> ExecResult:
        handle, channel = await self._handles.connect(sandbox_id)
        command = await self._command(request, handle, channel, span, background=True)
        if SHELL_STATE not in channel.hello.features:
            command = replace(command, state_of=None)
        exec_id = exec_id or _exec_id(request)
        span.set(exec_attributes(handle.record, exec_id, background=True))
        handle.remember(exec_id, ExecStart(handle.counters, command.timeout_s))
        fields = start_fields(exec_id, command, follow=False)
        shell = command.shell if command.argv is None else None
        shown = kernel_line(exec_id) or line or request.command
        keyed = command.key is not None
        starting = self._trail.starting_keyed if keyed else self._trail.starting
        recorded = RecordedCommand(shown, shell, env=request.env or ())
        with starting(handle.record, exec_id, recorded):
            try:
                answer = await channel.call("exec.start", fields, timeout_s=CALL_TIMEOUT_S)
            except CommandNotFound as exc:
                raise missing_program(exc, command.argv) from exc
            reply = decode_exec(answer)
            check_same_command(exec_id, reply.exec_id)
        if shell is not None:
            # It may change the directory, and no caller may ask how it ended.
            handle.cwd = None
        # Else it was found by its key, and the request that started it recorded it.
        is_ours = reply.exec_id == exec_id
        if keyed and is_ours:
            self._trail.exec_asked(handle.record, exec_id, recorded)
        recording = None
        if is_ours and kernel_line(exec_id) is None:
            recording = self._trail.recording(handle.record, exec_id, shown)
        if recording is not None:
            self._trail.background[exec_id] = recording
            if len(self._trail.background) > _MOST_RECORDED:
                self._trail.background.pop(next(iter(self._trail.background))).close()
        # Also if it was found: the client of an earlier request may have left before it began.
        row = self.history.began(handle.record, reply.exec_id, shown, shell)
        if row is not None:
            self.history.follow(row)
        if command.stdin is not None:
            # The stream that started the command has ended, so its stdin is sent with the stdin
            # verb.
            fields = {"exec_id": reply.exec_id, "close": not command.keep_stdin_open}
            await channel.call("exec.stdin", fields, data=command.stdin)
        return result_of(reply, KeptOutput(0, 0))

    async def get(self, sandbox_id: str, exec_id: str, *, wait_s: float = 0) -> ExecResult:
        """Return what is kept of a command; wait up to `wait_s` for its end."""
        exec_id = checked_exec_id(exec_id)
        wait_s = number("wait_seconds", wait_s, low=0, high=MAX_WAIT_S)
        handle, channel = await self._handles.connect(sandbox_id)
        output = KeptOutput(MAX_KEPT_BYTES, MAX_KEPT_BYTES)
        async with self._handles.explaining(handle):
            if wait_s > 0:
                await channel.call(
                    "exec.wait",
                    {"exec_id": exec_id, "timeout_ms": int(wait_s * 1000)},
                    timeout_s=wait_s + CALL_TIMEOUT_S,
                )
            async with channel.stream("exec.output", {"exec_id": exec_id}) as call:
                async for item in call:
                    if isinstance(item, OutputChunk) and kernel_line(exec_id) is None:
                        self._saw(exec_id, _add(output, item))
                reply = decode_exec(await call.result())
        handle.note(reply)
        return await self._ended(handle, reply, output)

    async def output(
        self, sandbox_id: str, exec_id: str, *, since_seq: int = 0, follow: bool = False
    ) -> AsyncIterator[Chunk | ExecResult]:
        """Yield the kept chunks after `since_seq`, with `follow` also later ones; then the result.

        Earlier chunks are requested too, because only they show how large a gap is.
        """
        exec_id = checked_exec_id(exec_id)
        since_seq = whole("since_seq", since_seq, low=0, high=2**63 - 1)
        handle, channel = await self._handles.connect(sandbox_id)
        output = KeptOutput(MAX_KEPT_BYTES, MAX_KEPT_BYTES)
        fields: dict[str, object] = {"exec_id": exec_id, "follow": follow}
        async with (
            self._handles.explaining(handle),
            channel.stream("exec.output", fields) as call,
        ):
            async for item in call:
                if isinstance(item, OutputChunk) and kernel_line(exec_id) is None:
                    chunk = self._saw(exec_id, _add(output, item))
                    if chunk.seq > since_seq:
                        yield chunk
            reply = decode_exec(await call.result())
        handle.note(reply)
        missing = missing_end(reply, output, exec_id) if kernel_line(exec_id) is None else ()
        for chunk in missing:
            if chunk.seq > since_seq:
                yield chunk
        yield await self._ended(handle, reply, output)

    async def signal(self, sandbox_id: str, exec_id: str, signal: int) -> None:
        fields = {
            "exec_id": checked_exec_id(exec_id),
            "signal": whole("signal", signal, low=1, high=64),
        }
        await self._call(sandbox_id, "exec.signal", fields)
        handle = await self._handles.get(sandbox_id)
        self._trail.acted(handle.record, "exec.signal", exec_id, signal=str(signal))

    async def stdin(
        self, sandbox_id: str, exec_id: str, data: bytes, *, close: bool = False
    ) -> None:
        fields = {"exec_id": checked_exec_id(exec_id), "close": close}
        if kernel_line(exec_id) is not None:
            raise Conflict(
                "a code context does not accept input",
                hint="run code in it: box.run_code, POST …/code",
            )
        handle, channel = await self._handles.connect(sandbox_id)
        if data:
            # A terminal into which something was typed counts as activity, however it was typed.
            handle.untyped.discard(exec_id)
        # No deadline here: a program reads its stdin when it wants to, and has its own deadline.
        await channel.call("exec.stdin", fields, data=data)

    async def close_shell(self, sandbox_id: str, name: str) -> None:
        """End a persistent shell with its jobs; the next command of that name gets a new one."""
        checked_shell(name)
        try:
            await self._call(sandbox_id, "shell.close", {"name": name})
        except FileNotFound as exc:
            raise ShellNotFound(
                f"no shell {name} is open", hint="a shell is opened by its first command"
            ) from exc
        handle, _ = await self._handles.connect(sandbox_id)
        handle.cwd = None
        self._trail.acted(handle.record, "shell.close", name)

    async def list(self, sandbox_id: str) -> tuple[ExecResult, ...]:
        """Return the newest 256 commands, without their output."""
        replies = listed(await self._call(sandbox_id, "exec.list", {}))
        return tuple(result_of(reply, KeptOutput(0, 0), raw=True) for reply in replies)

    def _told(self, sandbox_id: str, result: ExecResult, span: Span) -> ExecResult:
        emit_finished(self._events, sandbox_id, result)
        trace_result(span, result)
        return result

    def _saw(self, exec_id: str, chunk: Chunk) -> Chunk:
        """Record output of a command in the background when it is read."""
        recording = self._trail.background.get(exec_id)
        if recording is not None:
            recording.add_chunk(chunk.seq, chunk.data)
        return chunk

    async def _ended(self, handle: Handle, reply: ExecReply, output: KeptOutput) -> ExecResult:
        recording = self._trail.background.pop(reply.exec_id, None) if reply.ended else None
        if recording is not None:
            recording.close()
        why = await explain_end(self._handles, handle, reply)
        if kernel_line(reply.exec_id) is not None:
            # Its output is messages to the engine.
            reply = replace(reply, stdout_bytes=0, stderr_bytes=0, last_seq=0, truncated=False)
        return await with_network(handle, reply, result_of(reply, output, why=why), self.reachable)

    async def _call(
        self, sandbox_id: str, verb: str, fields: dict[str, object]
    ) -> dict[str, object]:
        _, channel = await self._handles.connect(sandbox_id)
        return await channel.call(verb, fields, timeout_s=CALL_TIMEOUT_S)

    async def _follow(
        self, sandbox_id: str, request: ExecRequest, span: Span, held: str | None = None
    ) -> ExecFollower:
        handle, channel = await self._handles.connect(sandbox_id)
        command = await self._command(request, handle, channel, span)
        if held is not None:
            command = replace(command, held=held)
        exec_id = _exec_id(request)
        span.set(exec_attributes(handle.record, exec_id))
        return ExecFollower(self._handles, handle, exec_id, command)

    async def _command(
        self,
        request: ExecRequest,
        handle: Handle,
        channel: Channel,
        span: Span,
        *,
        background: bool = False,
    ) -> Command:
        if request.stdin is not None and not isinstance(
            request.stdin, bytes | bytearray | memoryview
        ):
            raise InvalidRequest(
                "stdin must be bytes", hint="encode the string first", field="stdin"
            )
        limits, shell = handle.record.limits, channel.hello.shell or "sh"
        with self._trail.deciding("exec", handle.record.tenant, handle.record.id):
            command = checked_command(
                request, limits, shell, background=background, ceiling=self._ceiling
            )
        trace_request(span, request, command)
        command = traced(command, self._tracing, span)
        return command if command.user is None else await as_user(command, handle.record, channel)

    async def _result(self, following: ExecFollower) -> ExecResult:
        reply, raw = following.reply, following.command.raw_output
        if reply is None:
            limits = following.handle.record.limits
            why = verdict(Ending(None, None, lost=True), limits)
            return lost_result(following.exec_id, following.output, raw=raw, why=why)
        if reply.exit_code == 0 and reply.state == "exited" and not reply.shell_reset:
            why = (
                None
                if not reply.timed_out
                else await explain_end(self._handles, following.handle, reply)
            )
        else:
            why = await explain_end(self._handles, following.handle, reply, following.began)
        result = result_of(reply, following.output, raw=raw, why=why)
        return await with_network(following.handle, reply, result, self.reachable)


def _recorded(
    following: ExecFollower,
    line: tuple[str, ...] | str,
    request: ExecRequest,
    code: bytes | None = None,
) -> RecordedCommand:
    shell = following.command.shell if following.command.argv is None else None
    return RecordedCommand(line, shell, env=request.env or (), code=code)


class _RecordedExec:
    """A command that a caller waits for. If the caller leaves early, the history follows the
    rest.
    """

    def __init__(
        self,
        history: ExecHistory,
        trail: AuditTrail,
        following: ExecFollower,
        command: RecordedCommand,
    ) -> None:
        self._history = history
        self._trail = trail
        self._following = following
        self._command = command
        self._row: ExecRow | None = None
        self._ended = False
        self._known = False
        """Whether the audit log has it."""
        self._found = False
        """Whether an earlier request started it."""
        self._recording: OutputRecording | None = None
        following.on_started = self._began

    def __enter__(self) -> _RecordedExec:
        following = self._following
        if following.command.key is None:
            self._asked()
        self._recording = self._trail.recording(
            following.handle.record, following.exec_id, self._command.line
        )
        return self

    def _asked(self) -> None:
        """Record it in the audit log, once, unless it is the command of an earlier request."""
        if not self._known:
            self._known = True
            record = self._following.handle.record
            self._trail.exec_asked(record, self._following.exec_id, self._command)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        following = self._following
        if self._recording is not None:
            self._recording.close()
        if kind is not None and not self._found:
            # Also if it is not known to have begun.
            self._asked()
        if isinstance(error, SandkastenError) and not self._found:
            record = following.handle.record
            self._trail.exec_failed(record.tenant, record.id, following.exec_id, error.code)
        abandoned = kind is not None and not issubclass(kind, SandkastenError)
        # The caller left while the command was queued in a shell; with an idempotency key its id is
        # not known here.
        if abandoned and self._row is None and following.asked and following.command.key is None:
            self._began(following.exec_id)
        if self._row is not None and not self._ended:
            self._history.follow(self._row)

    def saw(self, chunk: Chunk) -> None:
        if self._recording is not None:
            self._recording.add_chunk(chunk.seq, chunk.data)

    def ended(self, result: ExecResult) -> ExecResult:
        record = self._following.handle.record
        if result.exec_id == self._following.exec_id:
            self._asked()
        self._trail.exec_ended(record.tenant, record.id, result)
        if self._row is not None:
            self._ended = True
            self._history.ended(self._row, result)
        return result

    def _began(self, exec_id: str) -> None:
        # By its idempotency key; then the request that started it is in the audit log.
        self._found = exec_id != self._following.exec_id
        if not self._found:
            self._asked()
        elif self._recording is not None:
            self._recording.close()
        record, command = self._following.handle.record, self._command
        self._row = self._history.began(record, exec_id, command.line, command.shell)


def _exec_id(request: ExecRequest) -> str:
    return new_exec_id("" if request.idempotency_key is None else fingerprint(request))


def _add(output: KeptOutput, piece: OutputChunk) -> Chunk:
    if not 0 <= piece.source < len(SOURCES):
        raise ProtocolViolation("an output chunk has an unknown source")
    source = SOURCES[piece.source]
    gap = output.add(piece.seq, source, piece.offset, piece.data)
    return Chunk(piece.seq, source, piece.data, gap)


__all__ = ["CALL_TIMEOUT_S", "Execution"]
