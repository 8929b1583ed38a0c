"""Resource usage as the kernel counts it; None where it does not."""

from __future__ import annotations

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.json_codec import Timestamp  # noqa: TC001  (the codec reads the annotations)


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one sandbox now."""

    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    cpu_usec: int | None = None
    pids: int | None = None
    pids_limit: int | None = None
    oom_kills: int | None = None
    pids_refused: int | None = None
    """How often a fork was refused by the pids limit."""


@dataclass(frozen=True, slots=True)
class ExecUsage:
    """Usage of one command from its start to its end."""

    cpu_ms: int = 0
    peak_memory_bytes: int = 0
    """The largest resident size of one of its processes. For a command of a shell the processes are
    looked at while it runs, so the peak of a short one can be missed."""
    io_read_bytes: int = 0
    io_write_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RunningCommand:
    exec_id: str
    command: str
    """The beginning of what was asked for; empty if another process started it."""
    started_at: Timestamp


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """Usage of one sandbox in a list of many, read without waking it; None is not known."""

    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    cpu_usec: int | None = None
    pids: int | None = None
    pids_limit: int | None = None
    oom_kills: int | None = None
    disk_bytes: int | None = None
    """Usage of the workspace, measured while a command last ran: asking an idle sandbox would keep
    it alive."""
    disk_limit_bytes: int | None = None
    connections: int | None = None
    """Open ones of its network."""
    rx_bytes: int | None = None
    tx_bytes: int | None = None
    running: int | None = None
    """Commands that have not ended; only a daemon knows."""
    commands: tuple[RunningCommand, ...] = ()
    """The newest of them."""
