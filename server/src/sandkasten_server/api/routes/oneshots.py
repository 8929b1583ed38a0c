"""One-shot compute over HTTP: code in, result and artifacts out.

Code that fails is a result with `ok` false.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    CommandNotFound,
    Conflict,
    FileNotFound,
    ImageNotFound,
    InvalidImage,
    IsolationRefused,
    PayloadTooLarge,
    QuotaExceeded,
    RegistryUnavailable,
    UnsupportedByBackend,
)
from sandkasten.model.field_patterns import GLOB, WORKSPACE_MEMBER, shown_form
from sandkasten.model.files.globs import MAX_GLOB, MAX_GLOBS
from sandkasten.model.json_codec import to_json
from sandkasten.model.language_runtimes import RUNTIME_NAMES
from sandkasten.model.request_spellings import (
    input_of,
    run_files,
    sandbox_options,
    timeout_of,
)
from sandkasten.model.sandbox.oneshot_values import RunRequest, StoredKey
from sandkasten.model.sandbox.sandbox_options import SESSION_ONLY, SandboxOptions
from sandkasten_runtime.engine.oneshot.oneshot import MAX_FILES
from sandkasten_server.api.request.authentication import require
from sandkasten_server.api.request.body_models import body_of
from sandkasten_server.api.request.field_schemas import (
    Base64,
    FileKey,
    Limits,
    NoNul,
    at_most_one,
    exactly_one,
    requires,
    rules,
    schema,
    shaped,
)
from sandkasten_server.api.response.exec_json import ChunkPrinter
from sandkasten_server.api.response.json_response import LARGE, answer
from sandkasten_server.api.response.sse import begun, event, large_event
from sandkasten_server.api.route import EVENTS, JSON, Answer, Body, Route
from sandkasten_server.api.routes.exec_schemas import ExecNetworkAnswer, WhyAnswer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from sandkasten.model.commands.exec_values import Chunk
    from sandkasten.model.sandbox.oneshot_values import RunResult
    from sandkasten_server.api.request.http_call import Call

# Pieces of output that wait for the client; the sandbox keeps what comes after them.
_KEPT_CHUNKS = 16


class FileBody(Body):
    model_config = ConfigDict(
        json_schema_extra=exactly_one("content", "content_base64", "file_key")
    )

    content: str | None = None
    content_base64: Base64 | None = Field(None, description="For bytes that are not UTF-8.")
    file_key: FileKey | None = Field(
        None, description="Of a stored file; requires the scope `files`."
    )


_File = Annotated[FileBody, AfterValidator(vars)]
# A list of objects, and not of a class of ours: what is below `files` is data.
_STORED_FILES = schema(
    items={
        "type": "object",
        "propertyNames": {"enum": ["file_key", "path", "destination"]},
        "additionalProperties": {"type": "string", "minLength": 1},
        "required": ["file_key"],
    },
    maxItems=MAX_FILES,
)
_Seconds = Annotated[
    float, Field(gt=0, le=10**7, json_schema_extra={"minimum": 0.001, "maximum": 86_400})
]
_Milliseconds = Annotated[
    float, Field(gt=0, le=10**10, json_schema_extra={"minimum": 1, "maximum": 86_400_000})
]
_Glob = Annotated[str, shaped(GLOB, maxLength=MAX_GLOB)]
_MEMBERS = schema(
    propertyNames={"pattern": shown_form(WORKSPACE_MEMBER), "maxLength": 4000},
    maxProperties=MAX_FILES,
)
RunBody = body_of(
    "RunBody",
    SandboxOptions,
    without=SESSION_ONLY,
    schema=rules(requires("workspace_mode", "workspace_id"), at_most_one("stdin", "stdin_b64")),
    limits=(Limits, Field(default_factory=dict)),
    code=(str, Field()),
    runtime=(
        Annotated[str, schema(enum=list(RUNTIME_NAMES))],
        Field("python", description="python, node, bash or sh, or another name for one of them."),
    ),
    args=(list[NoNul], Field(default_factory=list)),
    files=(
        Annotated[dict[str, str | _File], _MEMBERS]
        | Annotated[list[dict[str, str]], _STORED_FILES],
        Field(
            default_factory=dict,
            description="Paths below the workspace, written before the code runs; or a list of "
            "stored files: `file_key`, and `path` (or `destination`) if it is not the last part "
            "of the key.",
        ),
    ),
    stdin=(str | None, None),
    stdin_b64=(Base64 | None, None),
    timeout_seconds=(_Seconds | None, None),
    timeout_ms=(_Milliseconds | None, Field(None, description="Wins over `timeout_seconds`.")),
    artifacts=(
        Annotated[list[_Glob], schema(maxItems=MAX_GLOBS)],
        Field(default_factory=list, description="Globs below the workspace of files to send back."),
    ),
)


class ArtifactAnswer(Answer):
    path: str
    path_b64: str | None = Field(None, description="Its bytes, if the name is not UTF-8.")
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
    network: ExecNetworkAnswer | None = Field(
        None, description="What the network refused while it ran; null when nothing was."
    )
    acquire_source: str = Field(description="`pool` if its sandbox was ready, else `cold`.")
    acquire_detail: str = Field(description="Why it did not come from the warm pool.")


async def run(call: Call) -> Response:
    fields = vars(await call.body(RunBody))
    files = run_files(fields["files"])
    if any(isinstance(content, StoredKey) for content in files.values()):
        require(call.principal, "files")
    request = RunRequest(
        code=fields["code"],
        runtime=fields["runtime"],
        args=tuple(fields["args"]),
        files=files,
        stdin=input_of(fields, "stdin"),
        timeout_seconds=timeout_of(fields),
        artifacts=tuple(fields["artifacts"]),
        # Here `runtime` is a program, and not another name for the image.
        options=sandbox_options({**fields, "runtime": None}),
        tenant=call.principal.tenant,
        key_id=call.principal.key_id,
    )
    # Nothing can read the result later, so a client that leaves ends the run.
    if EVENTS in call.connection.headers.get("accept", ""):
        return await begun(_running(call, request), call)
    result = await call.while_there(call.engine.run(request, call.principal.quota))
    return answer(await _fields(result))


async def _running(call: Call, request: RunRequest) -> AsyncIterator[bytes]:
    """Yield the output as it comes; a client that reads slowly holds up the reading of it."""
    chunks: asyncio.Queue[Chunk | None] = asyncio.Queue(_KEPT_CHUNKS)

    async def run() -> RunResult:
        try:
            return await call.engine.run(request, call.principal.quota, show=chunks.put)
        finally:
            await chunks.put(None)

    running = asyncio.create_task(run())
    printer = ChunkPrinter(call.server.clock, None)
    try:
        while (chunk := await chunks.get()) is not None:
            yield event("chunk", printer.fields(chunk), chunk.seq)
        async for piece in large_event("done", await _fields(await running)):
            yield piece
    finally:
        running.cancel()
        # Its end has to be put somewhere.
        while not chunks.empty():
            chunks.get_nowait()
        await asyncio.gather(running, return_exceptions=True)


async def _fields(result: RunResult) -> dict[str, Any]:
    """Return a result as JSON; one with much output or artifacts is decoded in a thread."""
    if not result.artifacts and len(result.stdout) + len(result.stderr) <= LARGE:
        return run_fields(result)
    return await asyncio.to_thread(run_fields, result)


def run_fields(result: RunResult) -> dict[str, Any]:
    fields = to_json(result)
    # An artifact has its content or the reason why not.
    fields["artifacts"] = [
        {name: value for name, value in artifact.items() if value is not None}
        for artifact in fields["artifacts"]
    ]
    return fields


ROUTES = (
    Route(
        "POST",
        "/v1/run",
        run,
        "Run code once in a new sandbox",
        "run",
        body=RunBody,
        answer=RunAnswer,
        gives=(JSON, EVENTS),
        description="With `Accept: text/event-stream`: events `chunk` (a piece of output), then "
        "`done` with the answer, or `error`. A client that leaves ends the run.",
        errors=(
            InvalidImage,
            ImageNotFound,
            CommandNotFound,
            FileNotFound,
            Conflict,
            PayloadTooLarge,
            QuotaExceeded,
            BackendUnavailable,
            IsolationRefused,
            UnsupportedByBackend,
            RegistryUnavailable,
            Busy,
        ),
    ),
)
