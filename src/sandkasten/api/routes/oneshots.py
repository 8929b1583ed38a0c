"""One-shot compute over HTTP: code in, answer and artifacts out, nothing left.

The code's own failure is an answer with `ok` false.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, StrictFloat, StrictInt

from sandkasten.api.files.stored_file import stored_bytes
from sandkasten.api.response.exec_json import why_fields
from sandkasten.api.response.json_response import answer, bytes_fields
from sandkasten.api.route import Answer, Body, Route
from sandkasten.api.routes.exec_schemas import WhyAnswer
from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    CommandNotFound,
    Conflict,
    InvalidImage,
    InvalidRequest,
    IsolationRefused,
    PayloadTooLarge,
    QuotaExceeded,
    UnsupportedByBackend,
)
from sandkasten.model.sandbox.oneshot_values import RunRequest

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten.api.request.http_call import Call
    from sandkasten.model.sandbox.oneshot_values import Artifact, RunResult

Number = StrictInt | StrictFloat


class FileBody(Body):
    content: str | None = None
    content_base64: str | None = Field(None, description="For bytes that are no text.")


class RunBody(Body):
    code: str
    runtime: str = Field("python", description="python, node, bash or sh")
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str | FileBody] = Field(
        default_factory=dict, description="Paths below the workspace, written before the code runs."
    )
    stdin: str | None = None
    stdin_b64: str | None = None
    timeout_seconds: Annotated[StrictFloat, Field(gt=0, le=10**7)] | None = None
    timeout_ms: Annotated[StrictFloat, Field(gt=0, le=10**10)] | None = Field(
        None, description="Wins over `timeout_seconds`."
    )
    artifacts: list[str] = Field(
        default_factory=list, description="Globs below the workspace of files to send back."
    )
    image: str | None = None
    limits: dict[str, Number] = Field(default_factory=dict)
    profile: str | None = None
    backend: str | None = None
    isolation: str | None = None
    network: str | None = None
    workspace_id: str | None = None
    workspace_mode: str | None = None
    mounts: list[str] = Field(default_factory=list)
    pip_packages: list[str] = Field(
        default_factory=list, description="Installed before it starts, without a network inside."
    )
    npm_packages: list[str] = Field(default_factory=list)


class ArtifactAnswer(Answer):
    path: str
    size_bytes: int
    content_base64: str | None = None
    omitted_reason: str | None = None


class RunAnswer(Answer):
    ok: bool
    runtime: str
    exit_code: int | None
    signal: int | None
    duration_ms: int
    stdout: str
    stderr: str
    output: str
    truncated: bool
    timed_out: bool
    oom_killed: bool
    artifacts: list[ArtifactAnswer]
    limits: dict[str, float]
    image: str
    sandbox_id: str
    backend: str
    error: str | None
    why: WhyAnswer | None
    warnings: list[str]


async def run(call: Call) -> Response:
    body = await call.body(RunBody)
    timeout_s = body.timeout_seconds
    if body.timeout_ms is not None:
        timeout_s = body.timeout_ms / 1000
    if body.stdin is not None and body.stdin_b64 is not None:
        raise _refused("stdin", "stdin and stdin_b64 exclude each other")
    stdin = None if body.stdin is None else body.stdin.encode()
    if body.stdin_b64 is not None:
        stdin = _decoded("stdin_b64", body.stdin_b64)
    request = RunRequest(
        code=body.code,
        runtime=body.runtime,
        args=tuple(body.args),
        env=body.env,
        files={path: _content(path, given) for path, given in body.files.items()},
        stdin=stdin,
        timeout_s=timeout_s,
        artifacts=tuple(body.artifacts),
        image=body.image,
        limits=body.limits,
        profile=body.profile,
        backend=body.backend,
        isolation=body.isolation,
        network=body.network,
        workspace_id=body.workspace_id,
        workspace_mode=body.workspace_mode,
        mounts=tuple(body.mounts),
        pip_packages=tuple(body.pip_packages),
        npm_packages=tuple(body.npm_packages),
        tenant=call.principal.tenant,
        key_id=call.principal.key_id,
    )
    result = await call.engine.run(
        request, call.principal.quota, other_disk_bytes=await stored_bytes(call)
    )
    return answer(run_fields(result))


def run_fields(result: RunResult) -> dict[str, Any]:
    return {
        "ok": result.ok,
        "runtime": result.runtime,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "duration_ms": result.duration_ms,
        **bytes_fields("stdout", result.stdout),
        **bytes_fields("stderr", result.stderr),
        **bytes_fields("output", result.output),
        "truncated": result.truncated,
        "timed_out": result.timed_out,
        "oom_killed": result.oom_killed,
        "artifacts": [_artifact(one) for one in result.artifacts],
        "limits": dict(result.limits),
        "image": result.image,
        "sandbox_id": result.sandbox_id,
        "backend": result.backend,
        "error": result.error,
        "why": why_fields(result.why),
        "warnings": list(result.warnings),
    }


def _artifact(one: Artifact) -> dict[str, Any]:
    fields: dict[str, Any] = {"path": one.path, "size_bytes": one.size_bytes}
    if one.data is not None:
        fields["content_base64"] = base64.b64encode(one.data).decode()
    else:
        fields["omitted_reason"] = one.omitted_reason
    return fields


def _content(path: str, given: str | FileBody) -> str | bytes:
    if isinstance(given, str):
        return given
    if (given.content is None) == (given.content_base64 is None):
        raise _refused(f"files.{path[:80]}", "a file has either content or content_base64")
    if given.content_base64 is not None:
        return _decoded(f"files.{path[:80]}", given.content_base64)
    return given.content or ""


def _decoded(field: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise _refused(field, f"{field} is no base64") from exc


def _refused(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, hint="see /docs for what it takes", field=field, http_status=422)


ROUTES = (
    Route(
        "POST",
        "/v1/run",
        run,
        "Run one piece of code in a sandbox of its own",
        "run",
        body=RunBody,
        answer=RunAnswer,
        errors=(
            InvalidImage,
            CommandNotFound,
            Conflict,
            PayloadTooLarge,
            QuotaExceeded,
            BackendUnavailable,
            IsolationRefused,
            UnsupportedByBackend,
            Busy,
        ),
    ),
)
