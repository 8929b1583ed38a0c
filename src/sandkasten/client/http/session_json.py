"""Sandboxes and commands: what is asked as JSON, and JSON as what was answered. Pure.

Files, images and workspaces have `mapping_files` and `mapping_images`. An answer that makes no
sense is ProtocolViolation; fields we do not know are left alone, so that a newer daemon serves an
older client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, cast, get_args

from sandkasten.client.http.json_values import (
    Json,
    choice,
    count,
    decoded,
    encoded,
    figure,
    given,
    mapping,
    maybe_count,
    maybe_text,
    moment,
    record,
    records,
    stream_bytes,
    text,
    texts,
    yes,
)
from sandkasten.errors import InvalidRequest
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.commands.exec_values import Chunk, ExecResult, Pty, Source, Status, Why
from sandkasten.model.sandbox.host_mounts import Mounted
from sandkasten.model.sandbox.limits import Limits, Unenforced
from sandkasten.model.sandbox.oneshot_values import Artifact, RunResult
from sandkasten.model.sandbox.policy import LIMIT_NAMES, parse_limits
from sandkasten.model.sandbox.sandbox_options import SESSION_ONLY
from sandkasten.model.sandbox.sandbox_requests import (
    DiskUsage,
    Info,
    NetworkUsage,
    Process,
    SandboxStatus,
    Stats,
)
from sandkasten.model.sandbox.usage import ExecUsage, Usage

if TYPE_CHECKING:
    from sandkasten.model.commands.exec_values import ExecRequest
    from sandkasten.model.sandbox.oneshot_values import RunRequest
    from sandkasten.model.sandbox.sandbox_requests import CreateRequest, UpdateRequest

# As wide as any operator may set it: what is read here was checked where it was made.
_WIDEST = Limits(max_exec_timeout_s=86_400.0)


# ---- asked


def create_body(request: CreateRequest) -> Json:
    return {**_asked(request.options), **given(session_key=request.session_key)}


def update_body(request: UpdateRequest) -> Json:
    return _asked(request)


def exec_body(request: ExecRequest, key: str) -> Json:
    body = _asked(request)
    command = body.pop("command")
    body.pop("stdin", None)
    return {**body, **input_fields("stdin", request.stdin), "cmd": command, "idempotency_key": key}


def _asked(value: Any) -> Json:
    """Return the fields that differ from their defaults; names in `model` are the contract's."""
    return {
        one.name: _plain(getattr(value, one.name))
        for one in fields(value)
        if getattr(value, one.name) != _default(one)
    }


def _default(one: Field[Any]) -> object:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return {"rows": value.rows, "cols": value.cols} if isinstance(value, Pty) else value


def input_fields(name: str, data: bytes | None) -> Json:
    """Bytes as text where they are text, which is half the size on the way."""
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
        files={path: _file(content) for path, content in request.files.items()},
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


def _file(content: str | bytes) -> object:
    if isinstance(content, str):
        return content
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"content_base64": encoded(content)}


# ---- answered


def info_of(value: object) -> Info:
    found = record(value, "session")
    told = record(found.get("limits") or {}, "limits")
    limits = {name: told[name] for name in told if name in LIMIT_NAMES}
    source = found.get("acquire_source", "cold")
    return Info(
        id=text(found, "id"),
        image=text(found, "image"),
        backend=text(found, "backend", ""),
        status=choice(found.get("status"), get_args(SandboxStatus), "status"),
        profile=text(found, "profile", "hardened"),
        limits=parse_limits(limits, _WIDEST) if limits else Limits(),
        created=yes(found, "created"),
        created_at=_moment(found, "created_at"),
        expires_at=_moment(found, "expires_at"),
        idle_timeout_s=figure(found, "idle_timeout_seconds", 0.0),
        lifetime_s=figure(found, "lifetime_seconds", 0.0),
        session_key=maybe_text(found, "session_key"),
        acquire_source="pool" if source == "pool" else "cold",
        acquire_detail=text(found, "acquire_detail", ""),
        workspace_id=maybe_text(found, "workspace_id"),
        workspace_shared=yes(found, "workspace_shared"),
        mounts=tuple(
            Mounted(text(one, "name"), text(one, "target"))
            for one in records(found.get("mounts") or [], "mounts")
        ),
        labels=mapping(found, "labels"),
        env_names=texts(found, "env_names"),
        unenforced=tuple(
            Unenforced(text(one, "limit"), text(one, "reason", ""), text(one, "remedy", ""))
            for one in records(found.get("unenforced") or [], "unenforced")
        ),
        warnings=texts(found, "warnings"),
        cwd=text(found, "cwd", "/workspace"),
        workdir=text(found, "workdir", "/workspace"),
        tenant=text(found, "tenant", DEFAULT_TENANT),
    )


def _moment(found: Json, name: str) -> float:
    """The exact figure where it is there; a date is to the millisecond."""
    exact = f"{name}_unix"
    return moment(found, exact if found.get(exact) is not None else name)


def exec_result_of(value: object) -> ExecResult:
    found = record(value, "exec")
    usage = record(found.get("usage") or {}, "usage")
    return ExecResult(
        exec_id=text(found, "exec_id"),
        status=choice(found.get("status"), get_args(Status), "status"),
        exit_code=maybe_count(found, "exit_code"),
        signal=maybe_count(found, "signal"),
        stdout=stream_bytes(found, "stdout"),
        stderr=stream_bytes(found, "stderr"),
        output=stream_bytes(found, "output"),
        cwd=maybe_text(found, "cwd"),
        truncated=yes(found, "truncated"),
        timed_out=yes(found, "timed_out"),
        oom_killed=yes(found, "oom_killed"),
        shell_reset=yes(found, "shell_reset"),
        duration_ms=count(found, "duration_ms", 0),
        stdout_bytes=count(found, "stdout_bytes", 0),
        stderr_bytes=count(found, "stderr_bytes", 0),
        last_seq=count(found, "last_seq", 0),
        usage=ExecUsage(
            cpu_ms=count(usage, "cpu_ms", 0),
            peak_memory_bytes=count(usage, "peak_memory_bytes", 0),
            io_read_bytes=count(usage, "io_read_bytes", 0),
            io_write_bytes=count(usage, "io_write_bytes", 0),
        ),
        why=why_of(found.get("why")),
        started_at=moment(found, "started_at") if found.get("started_at") is not None else 0.0,
        pid=maybe_count(found, "pid") or 0,
        shell=maybe_text(found, "shell"),
    )


def execs_of(value: object) -> list[ExecResult]:
    """Oldest first, as they are told in one process; the daemon tells the newest first."""
    found = value.get("execs") if isinstance(value, dict) else value
    return [exec_result_of(one) for one in reversed(records(found, "execs"))]


def why_of(value: object) -> Why | None:
    if value is None:
        return None
    found = record(value, "why")
    # A newer daemon may know more reasons than we do; they are shown as they come.
    code = cast("Any", text(found, "code"))
    return Why(code, text(found, "message", ""), text(found, "hint", ""))


def chunk_of(value: object) -> Chunk:
    found = record(value, "chunk")
    if found.get("data_b64") is not None:
        data = decoded(found["data_b64"], "data_b64")
    else:
        data = text(found, "text").encode("utf-8", "surrogatepass")
    return Chunk(
        seq=count(found, "seq"),
        source=choice(found.get("stream"), get_args(Source), "stream"),
        data=data,
        gap_bytes=count(found, "gap_bytes", 0) if found.get("gap_bytes") is not None else 0,
    )


def run_result_of(value: object) -> RunResult:
    found = record(value, "run")
    artifacts = tuple(_artifact(one) for one in records(found.get("artifacts") or [], "artifacts"))
    stdout, stderr = stream_bytes(found, "stdout"), stream_bytes(found, "stderr")
    joined = "output" in found or "output_b64" in found
    return RunResult(
        ok=yes(found, "ok"),
        runtime=text(found, "runtime"),
        exit_code=maybe_count(found, "exit_code"),
        signal=maybe_count(found, "signal"),
        duration_ms=count(found, "duration_ms", 0),
        stdout=stdout,
        stderr=stderr,
        output=stream_bytes(found, "output") if joined else stdout + stderr,
        truncated=yes(found, "truncated"),
        timed_out=yes(found, "timed_out"),
        oom_killed=yes(found, "oom_killed"),
        artifacts=artifacts,
        limits=record(found.get("limits") or {}, "limits"),
        image=text(found, "image", ""),
        sandbox_id=text(found, "sandbox_id", ""),
        backend=text(found, "backend", ""),
        error=maybe_text(found, "error"),
        why=why_of(found.get("why")),
        warnings=texts(found, "warnings"),
    )


def _artifact(found: Json) -> Artifact:
    content = found.get("content_base64")
    return Artifact(
        path=text(found, "path"),
        size_bytes=count(found, "size_bytes"),
        data=None if content is None else decoded(content, "content_base64"),
        omitted_reason=maybe_text(found, "omitted_reason"),
    )


def usage_of(value: object) -> Usage:
    """The part of a stats answer that the kernel counts."""
    found = record(value, "stats")
    return Usage(
        memory_bytes=maybe_count(found, "memory_bytes"),
        memory_peak_bytes=maybe_count(found, "memory_peak_bytes"),
        memory_limit_bytes=maybe_count(found, "memory_limit_bytes"),
        cpu_usec=maybe_count(found, "cpu_usage_usec"),
        pids=maybe_count(found, "pids"),
        pids_limit=maybe_count(found, "pids_limit"),
        oom_kills=maybe_count(found, "oom_kills"),
        pids_refused=maybe_count(found, "pids_refused"),
    )


def stats_of(value: object) -> Stats:
    found = record(value, "stats")
    return Stats(
        usage=usage_of(found),
        uptime_ms=count(found, "uptime_ms", 0),
        processes=maybe_count(found, "processes"),
        running=maybe_count(found, "running"),
        shells=maybe_count(found, "shells"),
        connections=maybe_count(found, "connections"),
        disk=tuple(
            DiskUsage(
                path=text(one, "path"),
                total_bytes=count(one, "total_bytes"),
                used_bytes=count(one, "used_bytes"),
                free_bytes=count(one, "free_bytes"),
                inodes=maybe_count(one, "inodes"),
                inodes_free=maybe_count(one, "inodes_free"),
            )
            for one in records(found.get("disk") or [], "disk")
        ),
        network=_network_of(found.get("network")),
    )


def _network_of(value: object) -> NetworkUsage:
    if value is None:
        return NetworkUsage()
    found = record(value, "network")
    return NetworkUsage(
        mode=text(found, "mode"),
        rx_bytes=count(found, "rx_bytes"),
        tx_bytes=count(found, "tx_bytes"),
    )


def processes_of(value: object) -> list[Process]:
    found = value.get("processes") if isinstance(value, dict) else value
    return [
        Process(
            pid=count(one, "pid"),
            ppid=count(one, "ppid"),
            uid=count(one, "uid"),
            state=text(one, "state"),
            name=text(one, "name"),
            cmdline=texts(one, "cmdline"),
            rss_bytes=count(one, "rss_bytes"),
            cpu_ms=count(one, "cpu_ms"),
            started_at=moment(one, "started_at"),
            threads=count(one, "threads"),
            exec_id=maybe_text(one, "exec_id"),
        )
        for one in records(found, "processes")
    ]


def reclaimed_of(value: object) -> int:
    found = record(value, "reclaim")
    return count(found, "bytes")
