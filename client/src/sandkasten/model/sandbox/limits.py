"""The limits of a sandbox, and those that this host cannot enforce."""

from __future__ import annotations

from sandkasten.lazy_dataclass import dataclass

MIB = 1024 * 1024
# What a single stream may keep. It is held in memory inside the sandbox and, while it is returned,
# in that of the daemon, several times over as JSON.
MAX_KEPT_BYTES = 32 * MIB
# What a command may always ask for; above it the operator's ceiling counts.
FREE_KEPT_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one sandbox. Defaults are the contract's; the kernel enforces what it can."""

    cpus: float = 1.0
    memory_bytes: int = 512 * MIB
    pids: int = 256
    workspace_bytes: int = 500 * MIB
    tmp_bytes: int = 64 * MIB
    open_files: int = 4096
    exec_timeout_s: float = 120.0
    max_exec_timeout_s: float = 3600.0
    stdout_bytes: int = 200_000
    stderr_bytes: int = 200_000
    artifact_bytes: int = 10_000_000
    artifacts: int = 100
    tool_file_bytes: int = 10 * MIB
    tool_files: int = 100


@dataclass(frozen=True, slots=True)
class Unenforced:
    """A limit that this host cannot enforce; reported at creation and by doctor."""

    limit: str
    reason: str = ""
    remedy: str = ""
