"""The history of a session: what its sandbox, the journal and the audit log know, in one list.

While the sandbox lives, its answer about a command wins. The journal has the command lines, the
code, and what the sandbox no longer remembers. Without a journal, the audit log has them, in which
text is shortened more.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final, cast, get_args

from sandkasten.model.audit_records import AuditFilter
from sandkasten.model.commands.code_values import context_of, kernel_line
from sandkasten.model.commands.exec_values import ExecPast, ExecResult, Why
from sandkasten.model.ids import is_cell_id
from sandkasten.model.journal_rows import ExecRow, ExecStatus, kernel_row
from sandkasten.model.sandbox.usage import ExecUsage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sandkasten.model.audit_records import AuditRow
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import AuditLog

MOST_LISTED: Final = 1000
"""Maximum number of entries of a session that are read at once."""
_STATUSES: Final = frozenset(get_args(ExecStatus))
_LIFE: Final = frozenset({"exec.start", "exec.end", "code.start", "code.end"})
_RESULT: Final = tuple(field.name for field in fields(ExecResult))


def past_of_result(result: ExecResult) -> ExecPast:
    """Return a command as its sandbox knows it."""
    values = {name: getattr(result, name) for name in _RESULT}
    context = context_of(result.exec_id, 0)
    if context is None:
        return ExecPast(**values)
    values |= {"stdout_bytes": 0, "stderr_bytes": 0, "last_seq": 0, "truncated": False}
    return ExecPast(
        **values,
        kind="kernel",
        command=kernel_line(result.exec_id),
        language=context.language,
        context_id=result.exec_id,
        output_kept=False,
    )


def past_of(row: ExecRow) -> ExecPast:
    """Return an entry that only the journal remembers, without output."""
    return ExecPast(
        exec_id=row.id,
        status=row.status,
        exit_code=row.exit_code,
        signal=row.signal,
        truncated=bool(row.stdout_bytes or row.stderr_bytes),
        timed_out=row.status == "timed_out",
        oom_killed=row.why == "OOM",
        duration_ms=row.duration_ms or 0,
        stdout_bytes=row.stdout_bytes,
        stderr_bytes=row.stderr_bytes,
        usage=ExecUsage(cpu_ms=row.cpu_ms or 0, peak_memory_bytes=row.peak_memory_bytes or 0),
        why=_why(row),
        started_at=row.started_at,
        shell=row.shell,
        network=row.network,
        kind=row.kind,
        command=row.command,
        command_bytes=row.command_bytes,
        command_sha256=row.command_sha256,
        language=row.language,
        context_id=row.context_id,
        error_name=row.error_name,
        key_id=row.key_id,
        agent=row.agent,
        run_id=row.run_id,
        output_kept=False,
    )


def merged(results: Iterable[ExecResult], rows: Iterable[ExecRow]) -> list[ExecPast]:
    """Return the entries of a sandbox and of the journal, oldest first, each once."""
    entries = {result.exec_id: past_of_result(result) for result in results}
    for row in rows:
        entry = entries.get(row.id)
        if entry is None:
            entries[row.id] = past_of(row)
            continue
        entries[row.id] = replace(
            entry,
            command=row.command,
            command_bytes=row.command_bytes,
            command_sha256=row.command_sha256,
            key_id=row.key_id,
            agent=row.agent,
            run_id=row.run_id,
            network=entry.network or row.network,
            why=entry.why or _why(row),
            oom_killed=entry.oom_killed or row.why == "OOM",
        )
    return sorted(entries.values(), key=lambda entry: entry.started_at)


def _why(row: ExecRow) -> Why | None:
    return None if row.why is None else Why(row.why)  # type: ignore[arg-type]


async def audited(log: AuditLog, record: Record, most: int) -> list[ExecRow]:
    """Return the newest commands and code of a session and its tenant as the audit log has them,
    with what it does not know left out. As in the journal, what could not be run is not among them.
    """
    wanted = AuditFilter(
        tenant=record.tenant,
        kind="exec",
        session_id=record.id,
        since=record.created_at,
        limit=2 * most,
        newest=True,
    )
    rows: dict[str, ExecRow] = {}
    for audit_row in await log.read(wanted):
        if audit_row.action not in _LIFE:
            # What a caller did to a command is not another one.
            continue
        rows[audit_row.target] = _audited(audit_row, rows.get(audit_row.target))
    # The outcome of what could not be run is the code of an error.
    return [row for row in rows.values() if row.status in _STATUSES][-most:]


def _audited(record: AuditRow, earlier: ExecRow | None) -> ExecRow:
    detail, spent = record.detail, record.usage
    ended = record.action.endswith(".end")
    text = "code" if is_cell_id(record.target) else "command"
    duration_ms = spent.get("duration_ms", 0)
    row = earlier or ExecRow(
        id=record.target,
        session_id=record.session_id or "",
        tenant=record.tenant,
        command=detail.get(text) or "",
        status="running",
        started_at=record.at - (duration_ms / 1000 if ended else 0.0),
        kind="cell" if is_cell_id(record.target) else "command",
        language=detail.get("language"),
        context_id=detail.get("context"),
        command_bytes=_whole(detail.get(f"{text}_bytes")),
        command_sha256=detail.get(f"{text}_sha256"),
        key_id=record.key_id,
        agent=detail.get("agent"),
        run_id=detail.get("run_id"),
        shell=detail.get("shell"),
    )
    if ended:
        row = replace(
            row,
            status=cast("ExecStatus", record.outcome),
            exit_code=_whole(detail.get("exit_code")),
            signal=_whole(detail.get("signal")),
            why=detail.get("why"),
            duration_ms=duration_ms,
            cpu_ms=spent.get("cpu_ms"),
            peak_memory_bytes=spent.get("peak_memory_bytes"),
            stdout_bytes=spent.get("stdout_bytes", 0),
            stderr_bytes=spent.get("stderr_bytes", 0),
            error_name=detail.get("error"),
        )
    return kernel_row(row)


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)


def with_lost_cells(
    rows: Sequence[ExecRow], running: Iterable[str], contexts: Iterable[str]
) -> list[ExecRow]:
    """Return the rows; a cell that ran in a process that is gone is lost. `running`: cells of this
    process; `contexts`: those that still run, perhaps for another one.
    """
    running_ids, context_ids = {*running}, {*contexts}
    return [
        replace(row, status="lost")
        if row.kind == "cell"
        and row.status == "running"
        and row.id not in running_ids
        and row.context_id not in context_ids
        else row
        for row in rows
    ]
