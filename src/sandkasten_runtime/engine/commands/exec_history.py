"""Record in the journal which commands and code ran: when they started and how they ended.

A caller that waits for a command records its end. For all other commands, one task per sandbox asks
the runner while any of them runs, records the end and emits its event. That task ends with the
engine and never changes what runs.
Only the process that runs code in a context knows its end. Its row is written before it runs, so
the next daemon finds it and records it as lost.
Without a journal this module remembers only code, and it never makes a command fail.
"""

from __future__ import annotations

import asyncio
import shlex
from collections import OrderedDict
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING

from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    ExecNotFound,
    NotFound,
    SandkastenError,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.commands.kept_output import KeptOutput
from sandkasten.model.journal_rows import COMMAND_BYTES, ExecRow, kernel_row, shortened
from sandkasten.ports.spans import caller_agent, caller_key
from sandkasten_runtime.engine.activity import activity
from sandkasten_runtime.engine.commands.exec_endings import emit_finished, explain_end
from sandkasten_runtime.engine.commands.exec_past import (
    MOST_LISTED,
    audited,
    merged,
    with_lost_cells,
)
from sandkasten_runtime.engine.commands.exec_results import listed, result_of
from sandkasten_runtime.engine.handles import Handles, is_paused
from sandkasten_runtime.wire.messages import ExecReply, decode_exec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.commands.exec_values import ExecPast, ExecResult
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Clock, EventSink, Journal

# The task waits for the oldest command, so its end is recorded at once; the others are checked at
# this interval.
_ROUND_S = 2.0
_CALL_TIMEOUT_S = 30.0
_AGAIN_S = 0.5
# Retry interval for a backend that does not answer; each failure doubles it up to a limit.
_AGAIN_LATER_S = 8.0
# A database that does not answer delays code by this much, and does not keep it from running.
_WRITE_S = 1.0
_MOST_REMEMBERED = 1024


@dataclass(slots=True)
class _Followed:
    """The commands of one sandbox that no caller waits for."""

    rows: dict[str, ExecRow] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


class ExecHistory:
    def __init__(
        self,
        handles: Handles,
        journal: Journal | None,
        clock: Clock,
        events: EventSink | None = None,
    ) -> None:
        self.trail = handles.trail
        self._handles = handles
        self._journal = journal
        self.clock = clock
        self._events = events
        self._followed: dict[str, _Followed] = {}
        self._closed = False
        self._running: dict[str, dict[str, ExecRow]] = {}
        self._remembered: OrderedDict[str, ExecRow] = OrderedDict()
        """Code that ran here, if there is no journal."""

    def running(self, session_id: str) -> Sequence[ExecRow] | None:
        """Return the commands and the code that have not ended, oldest first; None if nothing is
        recorded. A kernel that waits for code is neither.
        """
        if self._journal is None:
            return None
        rows = self._running.get(session_id, {}).values()
        return [row for row in rows if row.kind != "kernel"]

    @property
    def remembers(self) -> bool:
        """True if commands are remembered without their sandbox."""
        return self._journal is not None

    async def past(
        self, session_id: str, results: Sequence[ExecResult], limit: int, tenant: str | None
    ) -> list[ExecPast]:
        """Return the newest entries of a session, oldest first. `results`: what its sandbox
        reports; `tenant`: whose entries of the journal, None for all.
        """
        rows = await self._rows(session_id, results, limit)
        return merged(results, [row for row in rows if tenant in (None, row.tenant)])[-limit:]

    async def _rows(
        self, session_id: str, results: Sequence[ExecResult], limit: int
    ) -> Sequence[ExecRow]:
        if self._journal is not None:
            return await self._journal.execs(session_id, limit=limit)
        remembered_rows = {
            row.id: row for row in self._remembered.values() if row.session_id == session_id
        }
        rows = []
        if self.trail.log is not None:
            handle = await self._handles.get(session_id)
            rows = await audited(self.trail.log, handle.record, limit)
        running = self._running.get(session_id, {})
        contexts = [result.exec_id for result in results if result.status == "running"]
        audited_rows = {row.id: row for row in with_lost_cells(rows, running, contexts)}
        return [*(audited_rows | remembered_rows).values()]

    def began(
        self, record: Record, exec_id: str, line: tuple[str, ...] | str, shell: str | None
    ) -> ExecRow | None:
        """Record a command as running; return None if nothing is recorded."""
        if self._journal is None:
            return None
        agent = caller_agent.get()
        command = shortened(line if isinstance(line, str) else shlex.join(line), COMMAND_BYTES)
        row = kernel_row(
            ExecRow(
                id=exec_id,
                session_id=record.id,
                tenant=record.tenant,
                command=command.text,
                status="running",
                started_at=self.clock.now(),
                shell=shell,
                command_bytes=command.size_bytes,
                command_sha256=command.sha256,
                key_id=caller_key.get(),
                agent=None if agent is None else agent.name,
                run_id=None if agent is None else agent.run_id,
            )
        )
        self._journal.note_exec(row)
        self._runs(row)
        return row

    async def code_begins(self, row: ExecRow) -> None:
        """Record code before its context gets it. After this, a crash leaves its row."""
        self._note_code(row)
        self._runs(row)
        if self._journal is not None:
            with suppress(SandkastenError, TimeoutError):
                async with asyncio.timeout(_WRITE_S):
                    await self._journal.flush()

    def code_ended(self, row: ExecRow) -> None:
        self._runs_no_more(row)
        self._note_code(row)

    def _note_code(self, row: ExecRow) -> None:
        if self._journal is not None:
            self._journal.note_exec(row)
            return
        self._remembered[row.id] = row
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)

    def _runs(self, row: ExecRow) -> None:
        self._running.setdefault(row.session_id, {})[row.id] = row

    def _runs_no_more(self, row: ExecRow) -> None:
        rows = self._running.get(row.session_id, {})
        rows.pop(row.id, None)
        if not rows:
            self._running.pop(row.session_id, None)

    def ended(self, row: ExecRow, result: ExecResult) -> None:
        self._runs_no_more(row)
        if self._journal is not None:
            self._journal.note_exec(_ended(row, result))

    def _ended_alone(self, row: ExecRow, result: ExecResult, *, recorded: bool = False) -> None:
        """Record the end of a command that no caller waits for, and emit its event. `recorded`:
        the audit log has it already.
        """
        self.ended(row, result)
        if not recorded:
            self.trail.exec_ended(row.tenant, row.session_id, result, row=row)
        emit_finished(self._events, row.session_id, result)

    def follow(self, row: ExecRow) -> None:
        """Follow a command that no caller waits for (any more)."""
        if self._journal is None or self._closed:
            return
        followed = self._followed.setdefault(row.session_id, _Followed())
        followed.rows[row.id] = row
        self._runs(row)
        if followed.task is None or followed.task.done():
            followed.task = asyncio.get_running_loop().create_task(self._watch(row.session_id))

    async def resume(self, record: Record, *, restarted: bool = False) -> int:
        """Follow the commands that the runner still runs; return how many. `restarted`: an earlier
        process may have died before it had recorded the others in the audit log.
        """
        if self._journal is None:
            return 0
        rows = await self._journal.execs(record.id, limit=MOST_LISTED)
        noted = {row.id: row for row in rows if row.kind != "cell"}
        handle, channel = await self._handles.connect(record.id)
        replies = listed(await channel.call("exec.list", timeout_s=_CALL_TIMEOUT_S))
        for reply in replies:
            handle.note(reply)
        by_id = {reply.exec_id: reply for reply in replies}
        for reply in await self.trail.unrecorded(replies) if restarted else ():
            result = result_of(reply, KeptOutput(0, 0))
            row = noted.get(reply.exec_id)
            self.trail.exec_ended(record.tenant, record.id, result, row=row, recovered=True)
        for row in rows if restarted else ():
            if row.kind == "cell" and row.status == "running":
                self._code_lost(row)
        count = 0
        for exec_id in {*by_id, *(row.id for row in noted.values() if row.status == "running")}:
            known_reply = by_id.get(exec_id)
            # One that has run for long may be older than the rows above.
            row = (
                noted.get(exec_id)
                or await self._journal.exec(record.id, exec_id)
                or _found(record, known_reply, exec_id)
            )
            if row.status == "running" and (known_reply is None or not known_reply.ended):
                self.follow(row)
                count += 1
            elif row.status == "running" and known_reply is not None:
                self._ended_alone(row, result_of(known_reply, KeptOutput(0, 0)), recorded=restarted)
        return count

    def _code_lost(self, row: ExecRow) -> None:
        """Record code whose process is gone, unless this process runs it."""
        if row.id not in self._running.get(row.session_id, {}):
            lost = replace(row, status="lost")
            self.code_ended(lost)
            self.trail.code_ended(lost, recovered=True)

    async def aclose(self) -> None:
        """Stop following. The commands continue."""
        self._closed = True
        tasks = [followed.task for followed in self._followed.values() if followed.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._followed.clear()

    async def _watch(self, session_id: str) -> None:
        followed = self._followed[session_id]
        away_s = _AGAIN_S
        try:
            while followed.rows:
                try:
                    await self._round(session_id, followed)
                    away_s = _AGAIN_S
                except Conflict as exc:
                    if not is_paused(exc):
                        return
                    await asyncio.sleep(_AGAIN_S)
                except NotFound:
                    # The end of the session also ends its commands, and is recorded as their end.
                    return
                except BackendUnavailable:
                    await asyncio.sleep(away_s)
                    away_s = min(away_s * 2, _AGAIN_LATER_S)
                except SandkastenError:
                    await asyncio.sleep(_AGAIN_S)
        finally:
            for row in followed.rows.values():
                self._runs_no_more(row)
            if self._followed.get(session_id) is followed and not self._closed:
                del self._followed[session_id]

    async def _round(self, session_id: str, followed: _Followed) -> None:
        """Wait a while for the oldest command, then check all of them."""
        handle = self._handles.peek(session_id)
        untyped = handle.untyped if handle is not None else set()
        # A shell that waits for its first input is not kept alive by being followed.
        with activity(not followed.rows.keys() <= untyped):
            await self._checked(session_id, followed)

    async def _checked(self, session_id: str, followed: _Followed) -> None:
        handle, channel = await self._handles.connect(session_id)
        first = next(iter(followed.rows))
        try:
            waited = await channel.call(
                "exec.wait",
                {"exec_id": first, "timeout_ms": int(_ROUND_S * 1000)},
                timeout_s=_ROUND_S + _CALL_TIMEOUT_S,
            )
            replies = [decode_exec(waited)]
        except ExecNotFound:
            # The runner keeps the newest few hundred results; the result of this command is
            # unknown.
            row = followed.rows.pop(first)
            self._runs_no_more(row)
            if self._journal is not None:
                self._journal.note_exec(replace(row, status="lost"))
            self.trail.exec_failed(row.tenant, row.session_id, row.id, "lost", row)
            replies = []
        if len(followed.rows) > 1:
            replies += listed(await channel.call("exec.list", timeout_s=_CALL_TIMEOUT_S))
        for reply in replies:
            handle.note(reply)
            if reply.ended and reply.exec_id in followed.rows:
                why = await explain_end(self._handles, handle, reply)
                row = followed.rows.pop(reply.exec_id)
                self._ended_alone(row, result_of(reply, KeptOutput(0, 0), why=why))


def _found(record: Record, reply: ExecReply | None, exec_id: str) -> ExecRow:
    """Return the row of a command that another process started. The runner does not report its
    command line.
    """
    return kernel_row(
        ExecRow(
            id=exec_id,
            session_id=record.id,
            tenant=record.tenant,
            command="",
            status="running",
            started_at=0.0 if reply is None else reply.started_ms / 1000,
            shell=None if reply is None else reply.shell,
        )
    )


def _ended(row: ExecRow, result: ExecResult) -> ExecRow:
    ended = replace(
        row,
        status=result.status,
        exit_code=result.exit_code,
        signal=result.signal,
        started_at=result.started_at or row.started_at,
        duration_ms=result.duration_ms,
        cpu_ms=result.usage.cpu_ms,
        peak_memory_bytes=result.usage.peak_memory_bytes,
        stdout_bytes=result.stdout_bytes,
        stderr_bytes=result.stderr_bytes,
        why=None if result.why is None else result.why.code,
        shell=result.shell,
        network=result.network,
    )
    return kernel_row(ended)
