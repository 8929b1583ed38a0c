"""Convert the runner's report of a command into the result a caller gets. Pure.

A command that ran and failed is a result here, whatever ended it; errors are raised elsewhere.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sandkasten.model.commands.exec_values import (
    Chunk,
    ExecResult,
    Source,
    Status,
    Why,
)
from sandkasten.model.commands.verdict import Ending
from sandkasten.model.ids import is_look_id
from sandkasten.model.sandbox.usage import ExecUsage
from sandkasten_runtime.wire.json_bodies import to_bytes_json
from sandkasten_runtime.wire.messages import decode_execs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sandkasten.model.commands.command import Command
    from sandkasten.model.commands.kept_output import KeptOutput
    from sandkasten_runtime.wire.messages import ExecReply

SOURCES: tuple[Source, Source, Source] = ("pty", "stdout", "stderr")
# Time between SIGTERM and SIGKILL. A command may exceed its deadline by this much, so every outer
# deadline must add it.
GRACE_S = 2.0


def listed(body: Mapping[str, Any]) -> tuple[ExecReply, ...]:
    """Return the commands of a result of `exec.list`, without programs that only look."""
    return tuple(reply for reply in decode_execs(body) if not is_look_id(reply.exec_id))


def start_fields(exec_id: str, command: Command, *, follow: bool) -> dict[str, object]:
    """Return the body of `exec.start`; fields that equal a protocol default are left out."""
    fields: dict[str, object] = {
        "exec_id": exec_id,
        "stdout_cap": command.stdout_cap,
        "stderr_cap": command.stderr_cap,
    }
    if math.isfinite(command.timeout_s):
        fields["deadline_ms"] = max(1, int(command.timeout_s * 1000))
    if command.argv is not None:
        fields["argv"] = [to_bytes_json(part) for part in command.argv]
        if command.state_of is not None:
            fields["shell"] = command.state_of
    else:
        fields["shell"] = command.shell
        fields["command"] = to_bytes_json(command.text or "")
    if command.env:
        fields["env"] = {name: to_bytes_json(value) for name, value in command.env.items()}
    if command.cwd is not None:
        fields["cwd"] = to_bytes_json(command.cwd)
    if command.stdin is not None or command.keep_stdin_open:
        fields["stdin"] = "stream"
    if command.pty is not None:
        fields["pty"] = {"rows": command.pty.rows, "cols": command.pty.cols}
    if command.held is not None:
        fields["held"] = command.held
    if command.key is not None:
        fields["key"] = command.key
    if not follow:
        fields["follow"] = False
    return fields


def ending_of(reply: ExecReply) -> Ending:
    return Ending(
        exit_code=reply.exit_code,
        signal=reply.signal,
        timed_out=reply.timed_out,
        killed=reply.killed,
        shell_reset=reply.shell_reset,
        lost=reply.state == "lost",
        oom_suspect=reply.oom_suspect,
        sigsys=reply.sigsys,
    )


def result_of(
    reply: ExecReply,
    output: KeptOutput,
    *,
    raw: bool = False,
    why: Why | None = None,
) -> ExecResult:
    # A terminal has one stream, which the runner counts as stdout.
    terminal = output.has("pty")
    out: Source = "pty" if terminal else "stdout"
    totals: dict[Source, int] = {out: reply.stdout_bytes, "stderr": reply.stderr_bytes}
    stdout = output.kept(out, marked=not raw, totals=totals)
    stderr = b"" if terminal else output.kept("stderr", marked=not raw, totals=totals)
    both = stdout
    if stderr:
        both = output.kept("stdout", "stderr", marked=not raw, totals=totals) if stdout else stderr
    return ExecResult(
        exec_id=reply.exec_id,
        status=_status(reply),
        exit_code=reply.exit_code,
        signal=reply.signal,
        stdout=stdout,
        stderr=stderr,
        output=both,
        cwd=reply.cwd,
        truncated=reply.truncated or output.incomplete,
        timed_out=reply.timed_out,
        oom_killed=why is not None and why.code == "OOM",
        shell_reset=reply.shell_reset,
        duration_ms=reply.duration_ms,
        stdout_bytes=reply.stdout_bytes,
        stderr_bytes=reply.stderr_bytes,
        last_seq=reply.last_seq,
        usage=ExecUsage(
            cpu_ms=reply.cpu_ms,
            peak_memory_bytes=reply.peak_rss_bytes,
            io_read_bytes=reply.io_read_bytes,
            io_write_bytes=reply.io_write_bytes,
        ),
        why=why,
        started_at=reply.started_ms / 1000,
        pid=reply.pid or 0,
        shell=reply.shell,
    )


def missing_end(reply: ExecReply, output: KeptOutput, exec_id: str) -> list[Chunk]:
    """Return empty chunks for the output that was written after the last received bytes."""
    if not reply.ended:
        return []
    out: Source = "pty" if output.has("pty") else "stdout"
    totals: dict[Source, int] = {out: reply.stdout_bytes, "stderr": reply.stderr_bytes}
    gaps = [(source, total - output.end(source)) for source, total in totals.items()]
    gaps = [(source, gap) for source, gap in gaps if gap > 0]
    # The numbers differ, because clients drop a chunk whose number they have seen.
    first = reply.last_seq - len(gaps) + 1
    return [
        Chunk(max(first + index, output.last_seq), source, b"", gap, exec_id)
        for index, (source, gap) in enumerate(gaps)
    ]


def lost_result(exec_id: str, output: KeptOutput, *, raw: bool, why: Why | None) -> ExecResult:
    """Return the result of a command that started and whose end will never be reported."""
    out: Source = "pty" if output.has("pty") else "stdout"
    return ExecResult(
        exec_id=exec_id,
        status="lost",
        exit_code=None,
        signal=None,
        stdout=output.kept(out, marked=not raw, totals={}),
        stderr=output.kept("stderr", marked=not raw, totals={}),
        output=output.kept(out, "stderr", marked=not raw, totals={}),
        cwd=None,
        truncated=output.incomplete,
        timed_out=False,
        oom_killed=False,
        shell_reset=False,
        duration_ms=0,
        stdout_bytes=output.end(out),
        stderr_bytes=output.end("stderr"),
        last_seq=output.last_seq,
        usage=ExecUsage(),
        why=why,
    )


def _status(reply: ExecReply) -> Status:
    if not reply.ended:
        return "running"
    if reply.timed_out:
        return "timed_out"
    if reply.state == "lost":
        return "lost"
    if reply.killed or reply.state == "signaled":
        return "killed"
    return "completed"
