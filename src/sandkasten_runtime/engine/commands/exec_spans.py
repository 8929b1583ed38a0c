"""The span of a command, and its trace inside the sandbox."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sandkasten.model.commands.command import Command
    from sandkasten.model.commands.exec_values import ExecRequest, ExecResult
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports.spans import Attributes, Span, Tracing

VARIABLE: Final = "TRACEPARENT"


def exec_attributes(record: Record, exec_id: str, *, background: bool = False) -> Attributes:
    return {
        "sandbox.id": record.id,
        "sandbox.image": record.image,
        "sandbox.backend": record.backend,
        "sandbox.exec_id": exec_id,
        "sandbox.background": background,
    }


def traced(command: Command, tracing: Tracing, span: Span) -> Command:
    """Return the command with the variable that names its span, unless the caller set one."""
    header = tracing.traceparent(span)
    if header is None or VARIABLE in command.env:
        return command
    return replace(command, env={**command.env, VARIABLE: header})


def trace_request(span: Span, request: ExecRequest, command: Command) -> None:
    span.set({"sandbox.timeout_seconds": command.timeout_s if command.timeout_s < 1e9 else None})
    line = request.command if isinstance(request.command, str) else " ".join(request.command)
    span.content("sandbox.input", line)


def output_attributes(result: ExecResult) -> Attributes:
    return {
        "sandbox.stdout_bytes": result.stdout_bytes,
        "sandbox.stderr_bytes": result.stderr_bytes,
        "sandbox.truncated": result.truncated,
    }


def trace_result(span: Span, result: ExecResult) -> None:
    """Add how a command ended. A failure is marked although it is a result and not an error."""
    span.set({"sandbox.exit_code": result.exit_code, **output_attributes(result)})
    span.content("sandbox.output", result.output)
    if result.why is not None:
        span.fail(result.why.code, result.why.message)
    elif result.status != "running" and result.exit_code != 0:
        span.fail("EXIT_CODE", f"exit status {result.exit_code}")
