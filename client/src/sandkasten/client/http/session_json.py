"""Sandboxes and commands as JSON: request bodies and answers. Pure.

Images and workspaces have `image_json`, files have theirs in `files`. An invalid answer is
ProtocolViolation; unknown fields are ignored, so that a newer daemon serves an older client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any

from sandkasten.client.http.error_responses import body_error
from sandkasten.client.http.json_values import (
    count,
    encoded,
    given,
    record,
    records,
    value_of,
    values_of,
)
from sandkasten.errors import InvalidRequest
from sandkasten.model.commands.exec_values import Chunk, ExecPast, ExecResult, Pty
from sandkasten.model.request_spellings import bytes_of
from sandkasten.model.sandbox.oneshot_values import RunResult, StoredKey
from sandkasten.model.sandbox.sandbox_options import SESSION_ONLY
from sandkasten.model.sandbox.sandbox_values import Forked, Info, Process, Stats
from sandkasten.model.sandbox.snapshot import NotKept
from sandkasten.model.sandbox.usage import Usage

if TYPE_CHECKING:
    from sandkasten.model.commands.exec_values import ExecRequest
    from sandkasten.model.json_codec import Json
    from sandkasten.model.sandbox.oneshot_values import RunRequest
    from sandkasten.model.sandbox.sandbox_values import (
        CreateRequest,
        ForkRequest,
        UpdateRequest,
    )


# ---- asked


def create_body(request: CreateRequest) -> Json:
    return {**_asked(request.options), **given(session_key=request.session_key)}


def update_body(request: UpdateRequest) -> Json:
    return _asked(request)


def fork_body(request: ForkRequest) -> Json:
    return _asked(request)


def exec_body(request: ExecRequest, key: str) -> Json:
    body = _asked(request)
    command = body.pop("command")
    body.pop("stdin", None)
    return {**body, **input_fields("stdin", request.stdin), "cmd": command, "idempotency_key": key}


def _asked(value: Any) -> Json:
    """Return the fields that differ from their defaults; names in `model` are the contract's."""
    return {
        field.name: _plain(getattr(value, field.name))
        for field in fields(value)
        if getattr(value, field.name) != _default(field)
    }


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return {"rows": value.rows, "cols": value.cols} if isinstance(value, Pty) else value


def input_fields(name: str, data: bytes | None) -> Json:
    """Return bytes as a string where they are UTF-8, which is shorter than base64."""
    if data is None:
        return {}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": encoded(data)}


def run_body(request: RunRequest) -> Json:
    body = given(
        runtime=request.runtime,
        args=list(request.args),
        files={path: _file(path, content) for path, content in request.files.items()},
        timeout_seconds=request.timeout_seconds,
        artifacts=list(request.artifacts),
        **input_fields("stdin", request.stdin),
    )
    options = _asked(request.options)
    for name in SESSION_ONLY:
        options.pop(name, None)
    return {**body, **options, "code": _code(request.code)}


def _code(code: str | bytes) -> str:
    try:
        return code if isinstance(code, str) else code.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(
            "code must be valid UTF-8", hint="pass binary data via `files`", field="code"
        ) from None


def _file(path: str, content: object) -> object:
    if isinstance(content, StoredKey):
        return {"file_key": content.key}
    if isinstance(content, str):
        return content
    data = bytes_of(content, str(path)[:80]) or b""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"content_base64": encoded(data)}


# ---- answered


def info_of(value: object) -> Info:
    return value_of(Info, value, "session")


def forked_of(value: object) -> Forked:
    answer = record(value, "fork")
    return Forked(
        tuple(
            body_error(record(result["error"], "error"))
            if result.get("error") is not None
            else info_of(result.get("session"))
            for result in records(answer.get("results"), "results")
        ),
        value_of(NotKept, answer.get("not_kept"), "not_kept"),
    )


def exec_result_of(value: object) -> ExecResult:
    return value_of(ExecResult, value, "exec")


def execs_of(value: object) -> list[ExecPast]:
    """Return entries oldest first, as one process lists them; the daemon has the newest first."""
    return values_of(ExecPast, value, "execs")[::-1]


def chunk_of(value: object) -> Chunk:
    """Return a piece of output: `text`, or `data_b64` where it is not UTF-8."""
    chunk = record(value, "chunk")
    names = {"source": chunk.get("stream"), "data": chunk.get("text")}
    return value_of(Chunk, {**chunk, **names}, "chunk")


def run_result_of(value: object) -> RunResult:
    return value_of(RunResult, value, "run")


def usage_of(value: object) -> Usage:
    """Return the part of a stats answer that the kernel counts."""
    return value_of(Usage, value, "stats")


def stats_of(value: object) -> Stats:
    return value_of(Stats, {**record(value, "stats"), "usage": value}, "stats")


def processes_of(value: object) -> list[Process]:
    return values_of(Process, value, "processes")


def reclaimed_of(value: object) -> int:
    return count(record(value, "reclaim"), "bytes")
