"""Answers of tools: bounded JSON, never with bytes that are not text.

Command output that is not UTF-8 has replacement characters, and `not_utf8` names the streams. File
names that are not UTF-8 have a field `<field>_b64`, as in the whole API.
"""

from __future__ import annotations

import base64
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import Busy, InternalError
from sandkasten.model.commands.kept_output import gap_marker

if TYPE_CHECKING:
    from sandkasten.errors import SandkastenError
    from sandkasten.model.commands.exec_values import Chunk, ExecResult, Why
    from sandkasten.model.files.file_entries import FileEntry
    from sandkasten.model.sandbox.oneshot_values import RunResult
    from sandkasten.model.sandbox.sandbox_values import Info

Answer = dict[str, Any]
_MOST_MESSAGE: Final = 4000
# Two streams merged into one can have two of them.
_MARK: Final = 2 * len(gap_marker(10**18))


def failure(error: SandkastenError) -> Answer:
    """Return an error body with `ok` false."""
    message, hint = printable(error.message), printable(error.hint)
    details = {
        name: [printable(item) for item in value]
        if isinstance(value, list)
        else printable(value)
        if isinstance(value, str)
        else value
        for name, value in error.details.items()
        if name != "http_status"
    }
    return {
        "ok": False,
        "error_code": error.code,
        "error": message,
        "code": error.code,
        "message": message,
        "hint": hint,
        "retryable": error.retryable,
        "details": details,
    }


def failed(answer: Answer) -> bool:
    """Return whether the tool itself failed; a command that failed does not count."""
    return "error_code" in answer


def unforeseen(exc: Exception) -> SandkastenError:
    """Convert an unexpected exception without its message, which may contain user data."""
    if isinstance(exc, MemoryError):
        return Busy("out of memory", hint="try again with less data")
    return InternalError(
        f"the tool failed unexpectedly ({type(exc).__name__})",
        hint="the arguments are not the cause; try another way",
    )


def printable(text: str) -> str:
    """Shorten a string for a model and replace lone surrogates, which JSON cannot carry."""
    cut = text if len(text) <= _MOST_MESSAGE else text[:_MOST_MESSAGE] + "…"
    return cut.encode("utf-8", "replace").decode()


def which(info: Info) -> Answer:
    return {"sandbox_id": info.sandbox_id, "session_id": info.session_id}


def opened(info: Info) -> Answer:
    fields = {
        **which(info),
        "session_key": info.session_key,
        "image": info.image,
        "workdir": info.workdir,
        "cwd": info.cwd,
        "created": info.created,
        "status": "ready" if info.status == "running" else info.status,
    }
    if info.warnings:
        fields["warnings"] = list(info.warnings)
    return fields


def streams(most: dict[str, int | None], **outputs: bytes) -> Answer:
    """Return each stream as text within its limit, with notes on truncation and replacement."""
    fields: Answer = {}
    replaced, cut = [], False
    for name, data in outputs.items():
        part = _cut(data, most.get(name))
        cut = cut or part is not data
        try:
            fields[name] = part.decode()
        except UnicodeDecodeError:
            fields[name] = part.decode(errors="replace")
            replaced.append(name)
    if replaced:
        fields["not_utf8"] = replaced
    if cut:
        fields["truncated"] = True
    return fields


def _cut(data: bytes, most: int | None) -> bytes:
    """Keep head and tail; do not truncate again only because the marker is present."""
    if most is None or len(data) <= most + _MARK:
        return data
    head, tail = (most + 1) // 2, most // 2
    return data[:head] + gap_marker(len(data) - most) + data[len(data) - tail :]


def command(result: ExecResult, most: dict[str, int | None]) -> Answer:
    return {
        **ending(result),
        **streams(most, stdout=result.stdout, stderr=result.stderr, output=result.output),
    }


def ending(result: ExecResult) -> Answer:
    """Return the status of a command without its output."""
    usage = result.usage
    return {
        "exec_id": result.exec_id,
        "status": result.status,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "cwd": None if result.cwd is None else printable(result.cwd),
        "truncated": result.truncated,
        "timed_out": result.timed_out,
        "oom_killed": result.oom_killed,
        "shell_reset": result.shell_reset,
        "duration_ms": result.duration_ms,
        "stdout_bytes": result.stdout_bytes,
        "stderr_bytes": result.stderr_bytes,
        "usage": {
            "cpu_ms": usage.cpu_ms,
            "peak_memory_bytes": usage.peak_memory_bytes,
            "io_read_bytes": usage.io_read_bytes,
            "io_write_bytes": usage.io_write_bytes,
        },
        "why": why(result.why),
        **({} if result.network is None else {"network": asdict(result.network)}),
    }


def why(reason: Why | None) -> Answer | None:
    if reason is None:
        return None
    return {"code": reason.code, "message": reason.message, "hint": reason.hint}


def chunk(piece: Chunk) -> Answer:
    fields: Answer = {"seq": piece.seq, "stream": piece.source}
    try:
        fields["text"] = piece.data.decode()
    except UnicodeDecodeError:
        fields["data_b64"] = base64.b64encode(piece.data).decode()
    if piece.gap_bytes:
        fields["gap_bytes"] = piece.gap_bytes
    return fields


def run(result: RunResult) -> Answer:
    fields: Answer = {
        "ok": result.ok,
        "runtime": result.runtime,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "duration_ms": result.duration_ms,
        "truncated": result.truncated,
        "timed_out": result.timed_out,
        "oom_killed": result.oom_killed,
        **streams({}, stdout=result.stdout, stderr=result.stderr),
        "artifacts": [],
        "limits": dict(result.limits),
        "image": result.image,
        "sandbox_id": result.sandbox_id,
        "why": why(result.why),
    }
    for artifact in result.artifacts:
        described: Answer = {**name("path", artifact.path), "size_bytes": artifact.size_bytes}
        if artifact.data is None:
            described["omitted_reason"] = artifact.omitted_reason
        else:
            described["content_base64"] = base64.b64encode(artifact.data).decode()
        fields["artifacts"].append(described)
    if result.error is not None:
        fields["error"] = printable(result.error)
    if result.warnings:
        fields["warnings"] = list(result.warnings)
    if result.network is not None:
        fields["network"] = asdict(result.network)
    return fields


def entry(file: FileEntry) -> Answer:
    fields = {
        **name("path", file.path),
        **name("name", file.name),
        "type": file.type,
        "is_dir": file.is_dir,
        "size": file.size,
        "size_bytes": file.size,
        "mode": f"{file.mode & 0o7777:04o}",
        "mtime_unix": file.mtime_unix,
    }
    if file.target is not None:
        fields |= name("target", file.target)
    return fields


def name(field: str, value: str) -> dict[str, str]:
    """Return a file name; for one that is not UTF-8 the text is only for display."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raw = os.fsencode(value)
        return {
            field: raw.decode(errors="replace"),
            f"{field}_b64": base64.b64encode(raw).decode(),
        }
    return {field: value}
