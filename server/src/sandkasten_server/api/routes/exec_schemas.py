"""Request and response schemas of the exec routes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, StrictInt

from sandkasten.model.commands.exec_values import ExecRequest, Pty
from sandkasten.model.commands.signals import SIGNAL
from sandkasten.model.field_patterns import shown_form
from sandkasten_server.api.request.body_models import body_of
from sandkasten_server.api.request.field_schemas import (
    WHOLE,
    Base64,
    Directory,
    NoNul,
    at_most_one,
    exactly_one,
    not_both,
    rules,
    schema,
    shaped,
)
from sandkasten_server.api.route import Answer, Body, Query

Side = Annotated[StrictInt, Field(ge=1, le=10_000), WHOLE]


class PtyBody(Body):
    rows: Side = 24
    cols: Side = 80


_Terminal = Annotated[PtyBody, AfterValidator(lambda body: Pty(body.rows, body.cols))]
_Words = (
    Annotated[
        list[NoNul],
        schema(minItems=1, prefixItems=[{"type": "string", "pattern": shown_form("[^\\x00]+")}]),
    ]
    | NoNul
    | None
)
_Milliseconds = Annotated[
    float,
    Field(ge=0, le=10**10, json_schema_extra={"anyOf": [{"const": 0}, {"minimum": 1}]}),
]
_ONCE = (exactly_one("cmd", "command"), at_most_one("stdin", "stdin_b64"))
_fields: dict[str, Any] = {
    "cmd": (
        _Words,
        Field(None, description="A list runs as a new process, a string in the session's shell."),
    ),
    "command": (_Words, Field(None, description="Another name for `cmd`.")),
    "workdir": (Directory | None, Field(None, description="Another name for `cwd`; `cwd` wins.")),
    "stdin": (str | None, None),
    "stdin_b64": (Base64 | None, Field(None, description="For bytes that are not UTF-8.")),
    "timeout_ms": (
        _Milliseconds | None,
        Field(None, description="Wins over `timeout_seconds`; 0: the default."),
    ),
    "pty": (bool | _Terminal, Field(False, description="On a terminal: one stream, no stderr.")),
    "stream": (bool, Field(False, description="Answer as exec/stream does.")),
    "background": (
        bool,
        Field(
            False,
            description="Answer 202 as soon as it runs. Without a timeout it runs until it ends or "
            "its session does.",
        ),
    ),
    "error_on_timeout": (
        bool,
        Field(False, description="Answer 504 when it times out, with the result in `details`."),
    ),
}

ExecBody = body_of(
    "ExecBody", ExecRequest, schema=rules(*_ONCE, not_both("background", "stream")), **_fields
)
_never = (Annotated[bool, schema(const=False)], Field(False, description="Not in a stream."))
StreamBody = body_of(
    "StreamBody", ExecRequest, schema=rules(*_ONCE), **{**_fields, "background": _never}
)


class StdinBody(Body):
    model_config = ConfigDict(json_schema_extra=at_most_one("data", "data_b64"))

    data: str | None = None
    data_b64: Base64 | None = None
    close: bool = Field(False, description="No more data follows.")


class SignalBody(Body):
    signal: Annotated[
        Annotated[StrictInt, Field(ge=1, le=64)] | Annotated[str, shaped(SIGNAL)], WHOLE
    ] = Field(description="A number, or a name with or without SIG.")


class WaitQuery(Query):
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = Field(
        0, description="How long to wait for its end."
    )


class OutputQuery(Query):
    since_seq: Annotated[int, Field(ge=0, le=2**62)] = Field(
        0, description="Only chunks after this one; 0: everything kept."
    )
    wait: Annotated[float, Field(ge=0, le=3600)] = Field(
        0, description="Seconds to wait for something new."
    )
    max_chunks: Annotated[int, Field(ge=1, le=100_000)] = 10_000


class HistoryQuery(Query):
    limit: Annotated[int, Field(ge=1, le=1000)] = 256


class ExecUsageAnswer(Answer):
    cpu_ms: int
    peak_memory_bytes: int
    io_read_bytes: int
    io_write_bytes: int


class WhyAnswer(Answer):
    code: str
    message: str
    hint: str


class RefusalAnswer(Answer):
    host: str
    port: int = Field(description="53 for a name that could not be looked up.")
    rule: str = Field(description="What refused it, or why the name could not be looked up.")
    hint: str
    address: str | None = Field(None, description="The address of the name, if it is known.")
    allow: str | None = Field(
        None,
        description="The rule to add to network.allow that allows it; null if no rule does.",
    )


class ExecNetworkAnswer(Answer):
    refused: list[RefusalAnswer]
    suggested: list[str] = Field(
        default_factory=list,
        description="With a dry run: a rule for each host and port that was reached.",
    )
    hint: str = Field(
        "",
        description="What to do, if the sandbox has no network and the command probably failed "
        "because of it.",
    )


class Exec(Answer):
    exec_id: str
    status: str = Field(description="completed, running, timed_out, killed or lost")
    exit_code: int | None = Field(description="null when it is not known; never invented")
    signal: int | None
    stdout: str
    stderr: str
    output: str = Field(description="Both streams in order of arrival.")
    stdout_b64: str | None = Field(None, description="The bytes, if they are not UTF-8.")
    stderr_b64: str | None = None
    output_b64: str | None = None
    cwd: str | None
    cwd_b64: str | None = Field(None, description="Its bytes, if the name is not UTF-8.")
    truncated: bool
    timed_out: bool
    oom_killed: bool
    shell_reset: bool
    duration_ms: int
    usage: ExecUsageAnswer
    why: WhyAnswer | None = Field(description="The limit or rule that ended it.")
    network: ExecNetworkAnswer | None = Field(
        None, description="What the network refused while it ran; null when nothing was."
    )
    stdout_bytes: int = Field(description="Number of bytes written, kept or not.")
    stderr_bytes: int
    last_seq: int
    pid: int | None
    shell: str | None
    started_at: float


class ChunkAnswer(Answer):
    seq: int
    stream: str
    text: str | None = None
    data_b64: str | None = Field(None, description="Instead of `text`, if the bytes are not UTF-8.")
    gap_bytes: int | None = Field(
        None, description="Written just before the code runs and not kept."
    )


class OutputAnswer(Exec):
    chunks: list[ChunkAnswer]
    done: bool = Field(description="The command has ended and this was its last output.")
    next_seq: int = Field(description="The `since_seq` of the next request.")


class ExecPast(Exec):
    status: str = Field(
        description="completed, running, timed_out, killed or lost; of a cell also error or "
        "interrupted"
    )
    kind: str = Field(
        description="command, cell (a piece of code in a context), or kernel (of a context)"
    )
    command: str | None = Field(
        description="The command line, or the code of a cell, shortened; null when only the "
        "sandbox remembers it."
    )
    command_bytes: int | None = Field(description="Size of the whole, if it is known.")
    command_sha256: str | None = Field(description="SHA-256 of the whole, if it was shortened.")
    language: str | None = Field(description="Of a cell or a kernel.")
    context_id: str | None
    error_name: str | None = Field(
        description="Of a cell: the exception that ended it, or the code of the error if it was "
        "not run or its kernel ended."
    )
    key_id: str | None = Field(description="The key that started it.")
    agent: str | None = Field(
        description="The agent whose model called the tool that started it; null for calls of "
        "clients."
    )
    run_id: str | None = Field(description="The run of that agent.")
    output_kept: bool = Field(description="false: only the fact is remembered.")


class Ok(Answer):
    ok: bool
