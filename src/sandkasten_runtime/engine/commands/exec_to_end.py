"""Record, report and explain a command whose output is known only when it has ended.

For one-shots on a backend that cannot keep a sandbox (`ports.RunsOnce`). What a caller, the
history, the audit log and the trace get is the same as of any command; only the output comes at the
end.
"""

from __future__ import annotations

import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING

from sandkasten.errors import InvalidRequest, SandkastenError
from sandkasten.model.commands.command import checked_command
from sandkasten.model.commands.exec_values import Chunk
from sandkasten.model.commands.kept_output import KeptOutput
from sandkasten.model.commands.verdict import Ending, verdict
from sandkasten.model.ids import new_exec_id
from sandkasten.ports import UNTRACED
from sandkasten_runtime.engine.audit_trail import RecordedCommand
from sandkasten_runtime.engine.commands.exec_endings import emit_finished
from sandkasten_runtime.engine.commands.exec_results import (
    SOURCES,
    ending_of,
    lost_result,
    missing_end,
    result_of,
)
from sandkasten_runtime.engine.commands.exec_spans import (
    exec_attributes,
    trace_request,
    trace_result,
    traced,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from sandkasten.model.commands.command import Command
    from sandkasten.model.commands.exec_values import ChunkReader, ExecRequest, ExecResult
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import EventSink, Span, Tracing
    from sandkasten_runtime.engine.audit_trail import AuditTrail
    from sandkasten_runtime.engine.commands.exec_history import ExecHistory
    from sandkasten_runtime.wire.call import OutputChunk
    from sandkasten_runtime.wire.messages import ExecReply

    Exchange = Callable[[str, Command], Awaitable[tuple[ExecReply, Sequence[OutputChunk]]]]
    """Runs the command under this id, and returns its end and what was kept of its output."""


class ExecToEnd:
    def __init__(
        self,
        trail: AuditTrail,
        history: ExecHistory,
        events: EventSink | None = None,
        ceiling: Mapping[str, int | float] = MappingProxyType({}),
        tracing: Tracing = UNTRACED,
    ) -> None:
        self._trail = trail
        self._history = history
        self._events = events
        self._ceiling = ceiling
        self._tracing = tracing

    async def run(
        self,
        record: Record,
        request: ExecRequest,
        exchange: Exchange,
        show: ChunkReader | None,
        code: bytes | None = None,
    ) -> ExecResult:
        """Run it to its end; `show` receives the output then. Raise what `exchange` raises."""
        with self._tracing.begin("sandbox.exec") as span:
            exec_id = new_exec_id()
            command = self._command(record, request, span, exec_id)
            recorded = RecordedCommand(request.command, env=request.env or (), code=code)
            with self._trail.starting(record, exec_id, recorded):
                row = self._history.began(record, exec_id, request.command, None)
                try:
                    reply, chunks = await exchange(exec_id, command)
                except BaseException as exc:
                    if row is not None:
                        why = None
                        if not isinstance(exc, SandkastenError):
                            why = verdict(Ending(None, None, lost=True), record.limits)
                        lost = lost_result(exec_id, KeptOutput(0, 0), raw=True, why=why)
                        self._history.ended(row, lost)
                    raise
            result = await self._told(record, command, reply, chunks, show)
            self._trail.exec_ended(record.tenant, record.id, result)
            if row is not None:
                self._history.ended(row, result)
            emit_finished(self._events, record.id, result)
            trace_result(span, result)
            return result

    def _command(self, record: Record, request: ExecRequest, span: Span, exec_id: str) -> Command:
        if not isinstance(request.command, tuple):
            raise InvalidRequest(
                "a command without a session must be a list", hint=shlex.quote(request.command)
            )
        with self._trail.deciding("exec", record.tenant, record.id):
            command = checked_command(request, record.limits, "sh", ceiling=self._ceiling)
        span.set(exec_attributes(record, exec_id))
        trace_request(span, request, command)
        return traced(command, self._tracing, span)

    async def _told(
        self,
        record: Record,
        command: Command,
        reply: ExecReply,
        pieces: Sequence[OutputChunk],
        show: ChunkReader | None,
    ) -> ExecResult:
        output = KeptOutput(command.stdout_cap, command.stderr_cap)
        recording = self._trail.recording(record, reply.exec_id, command.argv or ())
        chunks = []
        for piece in pieces:
            gap = output.add(piece.seq, SOURCES[piece.source], piece.offset, piece.data)
            chunks.append(Chunk(piece.seq, SOURCES[piece.source], piece.data, gap, reply.exec_id))
        chunks += missing_end(reply, output, reply.exec_id)
        for chunk in chunks:
            if recording is not None:
                recording.add_chunk(chunk.seq, chunk.data)
            if show is not None:
                await show(chunk)
        if recording is not None:
            recording.close()
        why = verdict(ending_of(reply), record.limits, command.timeout_s)
        return result_of(reply, output, raw=command.raw_output, why=why)
