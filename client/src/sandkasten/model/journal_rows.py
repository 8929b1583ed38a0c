"""Rows of the journal: owners of sessions, commands that ran, keys and stored files.

The ledger lists what exists; these rows list who owned it and what became of it, and outlive it
until their retention ends. Values only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping  # noqa: TC003  (the codec reads the annotations)
from dataclasses import field, replace
from types import MappingProxyType
from typing import Final, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import Scope, TenantQuota  # noqa: TC001
from sandkasten.model.commands.code_values import context_of, kernel_line
from sandkasten.model.commands.exec_values import ExecKind, ExecNetwork  # noqa: TC001
from sandkasten.model.json_codec import Timestamp  # noqa: TC001

SessionEnd = Literal["destroyed", "expired", "crashed", "lost"]
"""Destroyed by a request; lease expired; died; lost by the machine or its backend."""
ExecStatus = Literal["running", "completed", "timed_out", "killed", "lost", "error", "interrupted"]
COMMAND_BYTES: Final = 4096
CODE_BYTES: Final = 16 * 1024
"""Code is longer than a command line, and is read rather than typed again."""


@dataclass(frozen=True, slots=True)
class RecordingInfo:
    """One recording of output."""

    exec_id: str
    size_bytes: int
    at: Timestamp
    """When it was last written."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    id: str
    tenant: str
    image: str
    backend: str
    created_at: float
    status: str = "creating"
    """creating, running, or a SessionEnd."""
    session_key: str | None = None
    workspace_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    key_id: str | None = None
    ended_at: float | None = None
    reason: str = ""
    """One sentence when it ended otherwise than by destroy."""


@dataclass(frozen=True, slots=True)
class ExecRow:
    """One command, piece of code or kernel. Its output is kept by the runner while the session
    lives, and not here.
    """

    id: str
    session_id: str
    tenant: str
    command: str
    """As asked, cut at 4 KiB; code at 16 KiB."""
    status: ExecStatus
    started_at: float
    exit_code: int | None = None
    signal: int | None = None
    duration_ms: int | None = None
    cpu_ms: int | None = None
    peak_memory_bytes: int | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    why: str | None = None
    """The code of what ended it."""
    shell: str | None = None
    kind: ExecKind = "command"
    language: str | None = None
    context_id: str | None = None
    command_bytes: int | None = None
    """Size of the whole; None in rows of earlier versions."""
    command_sha256: str | None = None
    """The digest of the whole command, if it was cut."""
    error_name: str | None = None
    """The exception that ended a cell, or the code of the error if it was not run."""
    key_id: str | None = None
    network: ExecNetwork | None = None
    """What was refused while it ran."""
    agent: str | None = None
    """The agent whose model called the tool that started it; None for calls of clients."""
    run_id: str | None = None
    """The run of that agent."""


def kernel_row(row: ExecRow) -> ExecRow:
    """Return the row of a command; of the kernel of a context, with what is shown of it."""
    context = context_of(row.id, 0)
    if context is None:
        return row
    line = kernel_line(row.id) or ""
    return replace(
        row,
        kind="kernel",
        command=line,
        command_bytes=len(line),
        language=context.language,
        context_id=row.id,
        # They exchange messages over it, which are not output.
        stdout_bytes=0,
        stderr_bytes=0,
    )


@dataclass(frozen=True, slots=True)
class Shortened:
    """The beginning of a text, and what shows which text it was."""

    text: str
    size_bytes: int
    sha256: str | None
    """None if nothing is missing."""


def shortened(text: str, most: int) -> Shortened:
    """Return at most `most` bytes of a text, with undecodable ones replaced."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return Shortened(data.decode(), len(data), None)
    beginning = data[:most].decode("utf-8", "ignore")
    return Shortened(beginning, len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class KeyRow:
    """An API key without the key itself; only its hash is stored, and not here."""

    id: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    created_at: Timestamp
    quota: TenantQuota
    expires_at: Timestamp | None = None
    revoked_at: Timestamp | None = None
    last_used_at: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of the file store."""

    key: str
    tenant: str
    size_bytes: int
    content_type: str
    checksum: str
    """`sha256:<hex>`"""
    created_at: Timestamp
    expires_at: Timestamp | None = None
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A stored file that was copied into a sandbox."""

    path: str
    """Where it lies in the sandbox, absolute."""
    size_bytes: int
    file_key: str
    checksum: str
