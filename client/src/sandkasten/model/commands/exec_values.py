"""Commands as values: the request, the result, and the reason a command ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypedDict

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.field_patterns import ACCOUNT, NO_NUL, PRINTABLE, SHELL_NAME, shown_form
from sandkasten.model.files.sandbox_paths import PATH_MAX
from sandkasten.model.json_codec import OPEN, FileName, Public
from sandkasten.model.sandbox.limits import MAX_KEPT_BYTES
from sandkasten.model.sandbox.network_refusals import Refusal  # noqa: TC001  (the codec reads it)
from sandkasten.model.sandbox.sandbox_options import ENVIRONMENT, described
from sandkasten.model.sandbox.usage import ExecUsage

Status = Literal["completed", "running", "timed_out", "killed", "lost", "error", "interrupted"]
"""`error` and `interrupted` are ends of code in a context, and never of a command."""
ExecKind = Literal["command", "cell", "kernel"]
"""A command or terminal; one piece of code in a context; the kernel of a context."""
Source = Literal["stdout", "stderr", "pty"]


@dataclass(frozen=True, slots=True)
class Pty:
    rows: int = 24
    cols: int = 80


# The longest timeout: 115 days.
MAX_SECONDS: Final = 10**7
DEFAULT_SHELL: Final = "default"
DIRECTORY: Final = {"pattern": shown_form(NO_NUL), "minLength": 1, "maxLength": PATH_MAX - 1}


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One command and its options, by the names of the public contract.

    A new option is a field here (with its line in `CommandKeywords`), a checked field in
    `model.commands.command` and its use in `engine.commands`. HTTP, tools and the client follow.
    """

    command: tuple[str, ...] | str
    """A tuple is a fresh process, a string goes to the session's persistent shell."""
    stateful: bool | None = field(
        default=None,
        metadata=described("true: in the session's shell; false: in a new process."),
    )
    """None: a string is, a tuple is not. A string with False runs in a fresh `sh -c`."""
    cwd: str | None = field(default=None, metadata={"schema": DIRECTORY})
    env: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), metadata={"schema": ENVIRONMENT}
    )
    stdin: bytes | None = None
    timeout_seconds: float | None = field(
        default=None,
        metadata=described(
            "0: the session's own.",
            ge=0,
            le=MAX_SECONDS,
            schema={"anyOf": [{"const": 0}, {"minimum": 0.001}]},
        ),
    )
    shell: str = field(
        default=DEFAULT_SHELL,
        metadata=described(
            "The name of one of several shells.", schema={"pattern": shown_form(SHELL_NAME)}
        ),
    )
    pty: Pty | None = field(
        default=None, metadata=described("On a terminal: one stream, no stderr.")
    )
    idempotency_key: str | None = field(
        default=None,
        metadata=described(
            "A second request with this key finds the first one's command.",
            schema={"pattern": shown_form(PRINTABLE + "{1,256}")},
        ),
    )
    max_output_bytes: int | None = field(
        default=None, metadata=described("Bytes kept of each stream.", ge=0, le=MAX_KEPT_BYTES)
    )
    """Bytes kept of each stream, first half and last half; None: the sandbox's limits."""
    user: str | None = field(
        default=None,
        metadata=described(
            "`USER[:GROUP]`, names or numbers of the image; others than the sandbox's own require "
            "profile dev. A string then runs in a new process.",
            schema={"pattern": shown_form(ACCOUNT)},
        ),
    )
    keep_stdin_open: bool = False
    """Leave stdin open after `stdin`, for `exec_stdin` later."""
    raw_output: bool = field(
        default=False, metadata=described("Omit the line that marks omitted bytes.")
    )


class CommandKeywords(TypedDict, total=False):
    """The options of a command as keyword arguments of the client."""

    timeout_ms: float | None
    timeout_seconds: float | None
    cwd: str | None
    env: Mapping[str, str] | None
    stdin: str | bytes | None
    shell: str
    pty: bool | tuple[int, int]
    stateful: bool | None
    idempotency_key: str | None
    max_output_bytes: int | None
    raw_output: bool
    user: str | int | None


@dataclass(frozen=True, slots=True)
class Why:
    """The limit or rule that ended a command."""

    code: Annotated[
        Literal["TIMEOUT", "OOM", "PIDS", "QUOTA", "SECCOMP", "SIGNAL", "SHELL_EXIT", "LOST"], OPEN
    ]
    message: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ExecNetwork:
    """What the network refused while a command ran, by it or by another one."""

    refused: tuple[Refusal, ...] = ()
    suggested: tuple[str, ...] = ()
    """With a dry run: a rule for each host and port that was reached."""
    hint: str = ""
    """What to do, if the sandbox has no network and the command probably failed because of it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output. `gap_bytes` were written right before it and not kept."""

    seq: int
    source: Source
    data: bytes
    gap_bytes: int = 0
    exec_id: str | None = None
    """Whose; None where the reader asked for it by its id."""


ChunkReader = Callable[[Chunk], Awaitable[None]]
"""Receives the output of a command while it runs; a slow one loses output, not the command."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What is known of a command. `exit_code` is None when it is unknown; it is never invented."""

    exec_id: str
    status: Annotated[Status, OPEN]
    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    output: bytes = b""
    cwd: FileName | None = None
    truncated: bool = False
    timed_out: bool = False
    oom_killed: bool = False
    shell_reset: bool = False
    duration_ms: int = 0
    stdout_bytes: int = 0
    """Number of bytes written, kept or not."""
    stderr_bytes: int = 0
    last_seq: int = 0
    usage: ExecUsage = field(default_factory=ExecUsage)
    why: Why | None = None
    started_at: float = 0.0
    """Unix seconds; 0 when it has not started."""
    pid: Annotated[int, Public(lambda pid: pid or None, lambda pid: pid or 0)] = 0
    """Inside the sandbox; 0 when it is not known."""
    shell: str | None = None
    """The shell it ran in; None for a fresh process."""
    network: ExecNetwork | None = None
    """None when nothing was refused."""


@dataclass(frozen=True, slots=True)
class ExecPast(ExecResult):
    """One entry of a session's history: a command, a piece of code, or a kernel."""

    kind: Annotated[ExecKind, OPEN] = "command"
    command: str | None = None
    """The command line, or the code of a cell. None if only the sandbox remembers it."""
    command_bytes: int | None = None
    """Size of the whole; None if it is not known."""
    command_sha256: str | None = None
    """The SHA-256 of the whole if `command` is shortened."""
    language: str | None = None
    """Only for a cell or a kernel."""
    context_id: str | None = None
    error_name: str | None = None
    """Only for a cell: the name of the exception that ended it, or the code of the error if it was
    not run or its kernel ended.
    """
    key_id: str | None = None
    """The key that started it; None if there was none, or it is not known."""
    agent: str | None = None
    """The agent whose model called the tool that started it; None for calls of clients."""
    run_id: str | None = None
    """The run of that agent."""
    output_kept: bool = True
    """False if only the fact is remembered."""
