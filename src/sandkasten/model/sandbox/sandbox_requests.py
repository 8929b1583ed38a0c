"""A sandbox as it is asked for and as it is described, without how it is made.

Values only: validation of what a caller asked lies in `model.policy`, the making in
`engine.sandboxes`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.sandbox.cell_spec import WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.sandbox.host_mounts import Mounted
    from sandkasten.model.sandbox.limits import Limits, Unenforced
    from sandkasten.model.sandbox.usage import Usage

Number = int | float
SandboxStatus = Literal["creating", "running", "paused", "destroying", "lost"]

_NO_TEXT: Mapping[str, str] = MappingProxyType({})
_NO_NUMBERS: Mapping[str, Number] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """What a caller asks for; None means the operator's default."""

    image: str | None = None
    ttl_s: float | None = None
    """Seconds without activity after which the sandbox ends; activity extends it."""
    idle_timeout_s: float | None = None
    """The same in other words; the smaller of the two counts."""
    lifetime_s: float | None = None
    """Seconds after which it ends whatever it does."""
    env: Mapping[str, str] = field(default_factory=lambda: _NO_TEXT)
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_TEXT)
    limits: Mapping[str, Number] = field(default_factory=lambda: _NO_NUMBERS)
    """Public names: cpu_limit, mem_limit_mb, pids_limit, workspace_mb, …; see `model.policy`."""
    profile: str | None = None
    backend: str | None = None
    isolation: str | None = None
    """standard, gvisor or strongest; the engine finds the backend for it."""
    network: str | None = None
    workspace_id: str | None = None
    """The name of a workspace that outlives the sandbox; made when it is not there."""
    workspace_mode: str | None = None
    """exclusive (one sandbox at a time, the default) or shared."""
    mounts: tuple[str, ...] = ()
    """Names of the operator's `policy.mounts`."""
    pip_packages: tuple[str, ...] = ()
    """Installed before, and shown read-only; see `model.packages`."""
    npm_packages: tuple[str, ...] = ()
    session_key: str | None = None
    """Get-or-create: the live sandbox that has this key, or a new one that gets it."""
    tenant: str = DEFAULT_TENANT
    """Whose it will be. Names (key, workspace) are the tenant's own."""
    key_id: str | None = None
    """The API key it was asked with, for the journal."""


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """What of a live sandbox is to change; None leaves it as it is."""

    ttl_s: float | None = None
    idle_timeout_s: float | None = None
    lifetime_s: float | None = None
    """Counted from its creation, as before."""
    labels: Mapping[str, str] | None = None
    """The whole set, in place of the old one."""
    network: str | None = None


@dataclass(frozen=True, slots=True)
class Info:
    """One sandbox, described. Times are Unix seconds."""

    id: str
    image: str
    backend: str
    status: SandboxStatus
    profile: str
    limits: Limits
    created: bool
    """False when `session_key` found one that was already there."""
    created_at: float
    expires_at: float
    """When it ends if nothing more is asked of it, as far as this process knows."""
    idle_timeout_s: float
    lifetime_s: float
    session_key: str | None = None
    acquire_source: Literal["pool", "cold"] = "cold"
    acquire_detail: str = ""
    workspace_id: str | None = None
    """The workspace's name; None for one that goes with the sandbox."""
    workspace_shared: bool = False
    mounts: tuple[Mounted, ...] = ()
    """The operator's host mounts and the sets of packages it has, read-only."""
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_TEXT)
    env_names: tuple[str, ...] = ()
    unenforced: tuple[Unenforced, ...] = ()
    warnings: tuple[str, ...] = ()
    cwd: str = WORKSPACE
    workdir: str = WORKSPACE
    tenant: str = DEFAULT_TENANT

    @property
    def sandbox_id(self) -> str:
        return self.id

    @property
    def session_id(self) -> str:
        return self.id


def public_fields(info: Info) -> dict[str, object]:
    """How every answer about a sandbox begins, by the names of the public contract."""
    return {
        "id": info.id,
        "sandbox_id": info.sandbox_id,
        "session_id": info.session_id,
        "session_key": info.session_key,
        "image": info.image,
        "backend": info.backend,
        "status": info.status,
        "cwd": info.cwd,
        "workdir": info.workdir,
        "created": info.created,
        "acquire_source": info.acquire_source,
        "acquire_detail": info.acquire_detail,
        "workspace_id": info.workspace_id,
    }


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """One file system inside the sandbox."""

    path: str
    total_bytes: int
    used_bytes: int
    free_bytes: int
    inodes: int | None = None
    inodes_free: int | None = None


@dataclass(frozen=True, slots=True)
class NetworkUsage:
    """What crossed the border of the sandbox. Mode `none`: it has no network, so nothing can."""

    mode: str = "none"
    rx_bytes: int = 0
    tx_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """`usage` is what the kernel counts from outside, the rest is what the runner says.

    A paused sandbox cannot be asked: what only its runner knows is None.
    """

    usage: Usage
    uptime_ms: int
    processes: int | None
    running: int | None
    """Commands that have not ended."""
    shells: int | None
    connections: int | None
    disk: tuple[DiskUsage, ...] = ()
    network: NetworkUsage = NetworkUsage()


@dataclass(frozen=True, slots=True)
class Process:
    """One process inside, as the sandbox's own /proc shows it."""

    pid: int
    ppid: int
    uid: int
    state: str
    name: str
    cmdline: tuple[str, ...]
    rss_bytes: int
    cpu_ms: int
    started_at: float
    threads: int
    exec_id: str | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a start found of the time before, and what it made of it: how many of each."""

    kept: int = 0
    """Known and alive; their running commands are followed again."""
    adopted: int = 0
    """Alive and not known to the journal: made by another process, now in its care."""
    finished: int = 0
    """Half-made or half-destroyed by a process that died; gone now."""
    removed: int = 0
    """Held by a backend, or by a row that could not be read, for nobody."""
    expired: int = 0
    crashed: int = 0
    lost: int = 0
    """The machine was restarted meanwhile."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What one pass of the reaper did."""

    finished: tuple[str, ...] = ()
    """Half-made or half-destroyed, now gone."""
    expired: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    """The cell had ended (its lease ran out, it was killed, the host restarted)."""
    orphans: tuple[str, ...] = ()
    """Held by a backend without a row."""
    corrupt: tuple[str, ...] = ()
    """Rows that could not be read."""
    failed: tuple[str, ...] = ()
    """Could not be removed this time; the next pass tries again."""
