"""A command asked for, a command's answer, and the verdict on what ended it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.sandbox.usage import ExecUsage

Status = Literal["completed", "running", "timed_out", "killed", "lost"]
Source = Literal["stdout", "stderr", "pty"]


@dataclass(frozen=True, slots=True)
class Pty:
    rows: int = 24
    cols: int = 80


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """`command` is a list (a fresh process) or a text (the session's persistent shell)."""

    command: tuple[str, ...] | str
    stateful: bool | None = None
    """None: a text is, a list is not. A text with False runs in a fresh `sh -c`."""
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    stdin: bytes | None = None
    timeout_s: float | None = None
    shell: str = "default"
    pty: Pty | None = None
    idempotency_key: str | None = None
    max_output_bytes: int | None = None
    """Bytes kept of each stream, first half and last half; None: the sandbox's limits."""
    keep_stdin_open: bool = False
    """Leave stdin open after `stdin`, for `exec_stdin` later."""
    raw_output: bool = False
    """Leave out the line that marks where bytes were not kept."""


@dataclass(frozen=True, slots=True)
class Why:
    """The limit or rule that ended a command."""

    code: Literal["TIMEOUT", "OOM", "PIDS", "QUOTA", "SECCOMP", "SIGNAL", "SHELL_EXIT", "LOST"]
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Output as it came. `gap_bytes` were written right before it and not kept."""

    seq: int
    source: Source
    data: bytes
    gap_bytes: int = 0
    exec_id: str | None = None
    """Whose; None where the reader asked for it by its id."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """`exit_code` is None when it is not known; it is never invented."""

    exec_id: str
    status: Status
    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    output: bytes
    cwd: str | None
    truncated: bool
    timed_out: bool
    oom_killed: bool
    shell_reset: bool
    duration_ms: int
    stdout_bytes: int
    """All that was written, kept or not."""
    stderr_bytes: int
    last_seq: int
    usage: ExecUsage
    why: Why | None = None
    started_at: float = 0.0
    """Unix seconds; 0 when it has not started."""
    pid: int = 0
    """Inside the sandbox."""
    shell: str | None = None
    """The shell it ran in; None for a fresh process."""
