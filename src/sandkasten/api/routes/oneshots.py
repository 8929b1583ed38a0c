"""One-shot compute over HTTP: code in, result and artifacts out.

Code that fails is a result with `ok` false.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from sandkasten.api.request.body_models import body_of, given
from sandkasten.api.response.json_response import answer
from sandkasten.api.route import Answer, Body, Route
from sandkasten.api.routes.exec_schemas import WhyAnswer
from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    CommandNotFound,
    Conflict,
    ImageNotFound,
    InvalidImage,
    InvalidRequest,
    IsolationRefused,
    PayloadTooLarge,
    QuotaExceeded,
    UnsupportedByBackend,
)
from sandkasten.model.json_codec import to_json
from sandkasten.model.request_spellings import decoded, input_of, sandbox_options, timeout_of
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SESSION_ONLY, SandboxOptions

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten.api.request.http_call import Call
    from sandkasten.model.sandbox.oneshot_values import RunResult


class FileBody(Body):
    content: str | None = None
    content_base64: str | None = Field(None, description="For bytes that are not UTF-8.")


RunBody = body_of(
    "RunBody",
    SandboxOptions,
    without=SESSION_ONLY,
    code=(str, Field()),
    runtime=(str, Field("python", description="python, node, bash or sh")),
    args=(list[str], Field(default_factory=list)),
    files=(
        dict[str, str | FileBody],
        Field(
            default_factory=dict,
            description="Paths below the workspace, written before the code runs.",
        ),
    ),
    stdin=(str | None, None),
    stdin_b64=(str | None, None),
    timeout_seconds=(float | None, Field(None, gt=0, le=10**7)),
    timeout_ms=(
        float | None,
        Field(None, gt=0, le=10**10, description="Wins over `timeout_seconds`."),
    ),
    artifacts=(
        list[str],
        Field(default_factory=list, description="Globs below the workspace of files to send back."),
    ),
)


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
    fields = given(await call.body(RunBody))
    files = fields.get("files", {})
    request = RunRequest(
        code=fields["code"],
        runtime=fields.get("runtime", "python"),
        args=tuple(fields.get("args", ())),
        files={path: _content(path, content) for path, content in files.items()},
        stdin=input_of(fields, "stdin"),
        timeout_seconds=timeout_of(fields),
        artifacts=tuple(fields.get("artifacts", ())),
        # Here `runtime` is a program, and not another name for the image.
        options=sandbox_options({**fields, "runtime": None}),
        tenant=call.principal.tenant,
        key_id=call.principal.key_id,
    )
    # Nothing can read the result later, so a client that leaves ends the run.
    result = await call.while_there(call.engine.run(request, call.principal.quota))
    return answer(run_fields(result))


def run_fields(result: RunResult) -> dict[str, Any]:
    fields = to_json(result)
    # An artifact has its content or the reason why not.
    fields["artifacts"] = [
        {name: value for name, value in one.items() if value is not None}
        for one in fields["artifacts"]
    ]
    return fields


def _content(path: str, given: str | dict[str, str]) -> str | bytes:
    if isinstance(given, str):
        return given
    field = f"files.{path[:80]}"
    content, encoded = given.get("content"), given.get("content_base64")
    if (content is None) == (encoded is None):
        raise InvalidRequest(
            "a file has either content or content_base64",
            hint="give one of them",
            field=field,
            http_status=422,
        )
    return decoded(encoded, field) if encoded is not None else content or ""


ROUTES = (
    Route(
        "POST",
        "/v1/run",
        run,
        "Run code once in a new sandbox",
        "run",
        body=RunBody,
        answer=RunAnswer,
        errors=(
            InvalidImage,
            ImageNotFound,
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
