"""Code contexts as values: the request, what code displays, and the result of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

from sandkasten.errors import ContextNotFound, InvalidRequest, PayloadTooLarge
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.commands.exec_values import DIRECTORY, MAX_SECONDS, ExecNetwork
from sandkasten.model.environment import checked_environment, text_bytes
from sandkasten.model.field_patterns import form, shown_form
from sandkasten.model.files.sandbox_paths import working_directory
from sandkasten.model.json_codec import OPEN, Timestamp
from sandkasten.model.language_runtimes import kernel_language
from sandkasten.model.numbers import number
from sandkasten.model.sandbox.limits import MIB
from sandkasten.model.sandbox.sandbox_options import ENVIRONMENT, described

MAX_CODE_BYTES: Final = MIB
MAX_CONTEXTS: Final = 16
"""Maximum number of contexts of one sandbox."""
LANGUAGE: Final = "[a-z][a-z0-9]{0,23}"
CONTEXT_ID: Final = f"ctx_({LANGUAGE})_(default_)?[0-9a-f]{{16}}"
_LANGUAGE: Final = form(LANGUAGE)
_CONTEXT: Final = form(CONTEXT_ID)
KNOWN_LANGUAGES: Final = ("python", "bash", "javascript", "typescript", "r", "java")
"""Languages with a kernel in our images. A call in one of them can have its own variables."""
_NAMES: Final = ", ".join(KNOWN_LANGUAGES)

CodeStatus = Literal["ok", "error", "timed_out", "interrupted", "restarted", "died"]


@dataclass(frozen=True, slots=True)
class CodeRequest:
    """One piece of code for a context."""

    code: str
    language: str = field(
        default="python",
        metadata=described(
            f"Language of the context: {_NAMES}, or another one that the image has a kernel for.",
            schema={"pattern": shown_form(LANGUAGE)},
        ),
    )
    context: str | None = field(
        default=None,
        metadata=described(
            "The id of a context; default: the session's own context of the language, which is "
            "created when it is first used.",
            schema={"pattern": shown_form(CONTEXT_ID)},
        ),
    )
    env: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata={
            **described(
                f"Environment variables for this call, if the language is one of {_NAMES}."
            ),
            "schema": ENVIRONMENT,
        },
    )
    timeout_seconds: float | None = field(
        default=None,
        metadata=described(
            "Time after which the code is interrupted; 0: the default of the session.",
            ge=0,
            le=MAX_SECONDS,
            schema={"anyOf": [{"const": 0}, {"minimum": 0.001}]},
        ),
    )


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """A new context."""

    language: str = field(
        default="python", metadata=described("See code.", schema={"pattern": shown_form(LANGUAGE)})
    )
    cwd: str | None = field(default=None, metadata={"schema": DIRECTORY})
    env: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), metadata={"schema": ENVIRONMENT}
    )


@dataclass(frozen=True, slots=True)
class CodeContext:
    """A kernel that runs in a sandbox and keeps its variables."""

    id: str
    language: str
    default: bool = False
    """True for the context of calls that name no context."""
    created_at: Timestamp = 0.0


@dataclass(frozen=True, slots=True)
class CodeDisplay:
    """One value that code displayed, in every form it has. Pictures are base64."""

    text: str | None = None
    html: str | None = None
    markdown: str | None = None
    png: str | None = None
    svg: str | None = None
    jpeg: str | None = None
    pdf: str | None = None
    latex: str | None = None
    json: Any = None
    javascript: str | None = None
    data: Any = None
    """A table: `columns`, `index` and `data`, of at most 1000 rows."""
    chart: Any = None
    """The content of a chart: `type`, `title`, labels and `elements`."""
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Other MIME types."""
    main: bool = False
    """True for the value of the last expression, false for other displayed values."""


@dataclass(frozen=True, slots=True)
class CodeError:
    """The exception that ended the code."""

    name: str
    value: str
    traceback: str
    """Without the escape sequences for colours."""


@dataclass(frozen=True, slots=True)
class CodeText:
    """Output that code printed."""

    stream: Literal["stdout", "stderr"]
    text: str


CodeItem: TypeAlias = CodeText | CodeDisplay
CodeReader: TypeAlias = Callable[[CodeItem], None]
"""Receives what code prints and displays, while it runs."""


@dataclass(frozen=True, slots=True)
class CodeResult:
    """The result of a piece of code. If the code raised, it has `error`."""

    context_id: str
    language: str
    status: Annotated[CodeStatus, OPEN] = "ok"
    results: tuple[CodeDisplay, ...] = ()
    stdout: str = ""
    stderr: str = ""
    error: CodeError | None = None
    execution_count: int | None = None
    text: str | None = None
    """The value of the last expression as text."""
    timed_out: bool = False
    truncated: bool = False
    """Output or results over a limit were left out."""
    kernel_restarted: bool = False
    """The kernel was replaced, and its variables are lost."""
    duration_ms: int = 0
    network: ExecNetwork | None = None
    """What the network refused while it ran, or a dry run let pass; None when nothing was."""


def checked_language(name: str) -> str:
    language = kernel_language(name.lower()) if isinstance(name, str) else ""
    if not _LANGUAGE.match(language):
        raise InvalidRequest(
            "language must be 1 to 24 letters and digits, beginning with a letter",
            hint=f"use {_NAMES}, or the language of another kernel",
            field="language",
        )
    return language


def is_language(value: object) -> bool:
    return isinstance(value, str) and _LANGUAGE.match(value) is not None


def checked_code(request: CodeRequest, most_s: float, usual_s: float) -> CodeRequest:
    """Return the request with its language, environment and timeout checked and filled in."""
    size = len(text_bytes("code", request.code))
    if size > MAX_CODE_BYTES:
        raise PayloadTooLarge(
            f"the code has {size} bytes, at most {MAX_CODE_BYTES} are allowed",
            hint="write data to a file, and let the code read the file",
            limit=MAX_CODE_BYTES,
        )
    language = checked_language(request.language)
    if request.context is not None:
        language = context_language(request.context)
    if request.env and language not in KNOWN_LANGUAGES:
        raise InvalidRequest(
            f"env of a call is supported for {_NAMES}, got {language}",
            hint="pass env when you create the context",
            field="env",
        )
    timeout_s = request.timeout_seconds or usual_s
    return CodeRequest(
        request.code,
        language,
        request.context,
        checked_environment(request.env) if request.env else {},
        number("timeout_seconds", timeout_s, low=0.001, high=most_s),
    )


def checked_context(request: ContextRequest) -> ContextRequest:
    return ContextRequest(
        checked_language(request.language),
        None if request.cwd is None else working_directory(request.cwd),
        checked_environment(request.env) if request.env else {},
    )


def context_of(the_id: str, started_ms: int) -> CodeContext | None:
    """Return the context that a command is; None if it is another command."""
    match = _CONTEXT.match(the_id)
    if match is None:
        return None
    return CodeContext(the_id, match[1], match[2] is not None, started_ms / 1000)


def kernel_line(the_id: str) -> str | None:
    """Return what is shown as the command line of a context; None for another command."""
    match = _CONTEXT.match(the_id)
    return None if match is None else f"{match[1]} kernel"


def context_language(the_id: str) -> str:
    """Return the language of a context; ContextNotFound if the id is invalid."""
    match = _CONTEXT.match(the_id) if isinstance(the_id, str) else None
    if match is None:
        raise no_context()
    return match[1]


def no_context() -> ContextNotFound:
    return ContextNotFound(
        "the sandbox has no code context with that id",
        hint="it may have ended; list the contexts, or leave the id out for the default one",
    )
