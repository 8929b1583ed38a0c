"""Commands and their output as JSON fields. Pure; on the path of every exec.

Bytes that are no UTF-8 are given twice: as text with replacement characters, and as base64.
"""

from __future__ import annotations

import codecs
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from sandkasten.api.response.json_response import bytes_fields

if TYPE_CHECKING:
    from sandkasten.model.commands.exec_values import Chunk, ExecResult, Why
    from sandkasten.model.journal_rows import ExecRow
    from sandkasten.ports import Clock

_decoder = codecs.getincrementaldecoder("utf-8")


def exec_fields(result: ExecResult) -> dict[str, Any]:
    usage = result.usage
    fields: dict[str, Any] = {
        "exec_id": result.exec_id,
        "status": result.status,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "cwd": result.cwd,
        "truncated": result.truncated,
        "timed_out": result.timed_out,
        "oom_killed": result.oom_killed,
        "shell_reset": result.shell_reset,
        "duration_ms": result.duration_ms,
        "usage": {
            "cpu_ms": usage.cpu_ms,
            "peak_memory_bytes": usage.peak_memory_bytes,
            "io_read_bytes": usage.io_read_bytes,
            "io_write_bytes": usage.io_write_bytes,
        },
        "why": why_fields(result.why),
        "stdout_bytes": result.stdout_bytes,
        "stderr_bytes": result.stderr_bytes,
        "last_seq": result.last_seq,
        "pid": result.pid or None,
        "shell": result.shell,
        "started_at": result.started_at,
    }
    try:
        fields["stdout"] = result.stdout.decode()
        fields["stderr"] = result.stderr.decode()
        fields["output"] = result.output.decode()
    except UnicodeDecodeError:
        fields |= bytes_fields("stdout", result.stdout)
        fields |= bytes_fields("stderr", result.stderr)
        fields |= bytes_fields("output", result.output)
    return fields


def why_fields(why: Why | None) -> dict[str, str] | None:
    return None if why is None else {"code": why.code, "message": why.message, "hint": why.hint}


def row_fields(row: ExecRow) -> dict[str, Any]:
    """A command that only the journal remembers: all that an exec answer has, without output."""
    why = row.why
    return {
        "exec_id": row.id,
        "status": row.status,
        "exit_code": row.exit_code,
        "signal": row.signal,
        "stdout": "",
        "stderr": "",
        "output": "",
        "cwd": None,
        "truncated": bool(row.stdout_bytes or row.stderr_bytes),
        "timed_out": row.status == "timed_out",
        "oom_killed": why == "OOM",
        "shell_reset": False,
        "duration_ms": row.duration_ms or 0,
        "usage": {
            "cpu_ms": row.cpu_ms or 0,
            "peak_memory_bytes": row.peak_memory_bytes or 0,
            "io_read_bytes": 0,
            "io_write_bytes": 0,
        },
        "why": None if why is None else {"code": why, "message": "", "hint": ""},
        "stdout_bytes": row.stdout_bytes,
        "stderr_bytes": row.stderr_bytes,
        "last_seq": 0,
        "pid": None,
        "shell": row.shell,
        "started_at": row.started_at,
        "command": row.command,
        "output_kept": False,
    }


def chunk_fields(chunk: Chunk) -> dict[str, Any]:
    fields: dict[str, Any] = {"seq": chunk.seq, "stream": chunk.source}
    try:
        fields["text"] = chunk.data.decode()
    except UnicodeDecodeError:
        fields["data_b64"] = b64encode(chunk.data).decode()
    if chunk.gap_bytes:
        fields["gap_bytes"] = chunk.gap_bytes
    return fields


class ChunkPrinter:
    """Chunks of one command as they come. `chunk` is text in which no character is cut in two."""

    def __init__(self, clock: Clock, exec_id: str | None) -> None:
        self._clock = clock
        self._exec_id = exec_id
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def fields(self, chunk: Chunk) -> dict[str, Any]:
        fields = chunk_fields(chunk)
        decoder = self._decoders.get(chunk.source)
        if decoder is None:
            decoder = self._decoders[chunk.source] = _decoder("replace")
        fields["chunk"] = decoder.decode(chunk.data)
        fields["timestamp"] = int(self._clock.now() * 1000)
        fields["exec_id"] = chunk.exec_id or self._exec_id
        return fields
