"""What one sandbox may use, and what is true of a limit on this host."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Defaults are the public contract's; each is a ceiling the kernel holds where it can."""

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
    tool_file_bytes: int = 10 * MIB
    tool_files: int = 100


@dataclass(frozen=True, slots=True)
class Unenforced:
    """A limit this host cannot hold: said at creation and by doctor, never silently dropped."""

    limit: str
    reason: str = ""
    remedy: str = ""
