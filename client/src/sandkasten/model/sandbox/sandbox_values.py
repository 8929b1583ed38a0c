"""Sandboxes as values: requests, descriptions and statistics.

Rules are in `model.sandbox.policy`, creation in `engine.lifecycle`.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  (the codec reads the annotations)
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from sandkasten.errors import SandkastenError  # noqa: TC001
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.json_codec import OPEN, FileName, Public, Timestamp
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.model.sandbox.host_mounts import Mounted  # noqa: TC001
from sandkasten.model.sandbox.limit_names import public_limits, read_public_limits
from sandkasten.model.sandbox.limits import Limits, Unenforced
from sandkasten.model.sandbox.sandbox_options import (
    LABELS,
    NETWORK,
    SECONDS,
    SandboxOptions,
    described,
)
from sandkasten.model.sandbox.snapshot import NotKept, StoredSnapshot  # noqa: TC001
from sandkasten.model.sandbox.usage import SessionUsage, Usage  # noqa: TC001

HOST = "host"
"""The image that shows this machine's own programs."""
MAX_FORKS: Final = 20
"""How many copies one request may make: they start together, and each is a whole sandbox."""

SandboxStatus = Literal["creating", "running", "paused", "destroying", "lost"]

_NO_TEXT: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """The options of a new sandbox, and on whose behalf it is created."""

    options: SandboxOptions = field(default_factory=SandboxOptions)
    session_key: str | None = None
    """Get-or-create: the live sandbox that has this key, or a new one that gets it."""
    tenant: str = DEFAULT_TENANT
    """The owner. Names (session key, workspace) belong to the tenant."""
    key_id: str | None = None
    """The API key of the request, for the journal."""
    agent: str | None = None
    """The installed agent that asks for it. Never set by a client."""
    origin: StoredSnapshot | None = None
    """The snapshot of the options. Never set by a client."""
    runtime_image: str | None = None
    """The alias of an image that has what the request runs; None: chosen by its packages. Counts
    only if neither the request nor the operator names an image."""


def wanted_images(request: CreateRequest, default_image: str | None) -> tuple[str, ...]:
    """Return the image that a request means, and the one that replaces it if the allow-list has
    only that.

    A request that names an image means this one. Otherwise the operator's `default_image` counts,
    and without one the alias of what the request runs.
    """
    options = request.options
    if options.image is not None:
        return (options.image,)
    alias = request.runtime_image or (
        "python" if options.pip_packages else "node" if options.npm_packages else "linux"
    )
    if default_image is not None:
        return (default_image, alias)
    return (alias, "linux" if alias == HOST else HOST)


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """Changes to a live sandbox; None leaves a field as it is."""

    ttl_seconds: float | None = field(
        default=None,
        metadata=described(
            "Without activity; the smaller of this and `idle_timeout_seconds` counts.", **SECONDS
        ),
    )
    idle_timeout_seconds: float | None = field(default=None, metadata=SECONDS)
    lifetime_seconds: float | None = field(
        default=None, metadata=described("Counted from creation.", **SECONDS)
    )
    labels: Mapping[str, str] | None = field(
        default=None, metadata=described("Replaces all labels.", schema=LABELS)
    )
    network: str | Mapping[str, Any] | None = field(
        default=None,
        metadata=described("Replaces the rules at once; as in a create request.", schema=NETWORK),
    )
    key_id: str | None = None
    """The API key of the request; None for the operator."""


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """Copies of a living sandbox; None leaves a field as the source has it."""

    count: int = field(default=1, metadata=described("How many.", ge=1, le=MAX_FORKS))
    ttl_seconds: float | None = field(
        default=None,
        metadata=described(
            "Without activity; the smaller of this and `idle_timeout_seconds` counts.", **SECONDS
        ),
    )
    idle_timeout_seconds: float | None = field(default=None, metadata=SECONDS)
    lifetime_seconds: float | None = field(
        default=None, metadata=described("Counted from the creation of the copy.", **SECONDS)
    )
    labels: Mapping[str, str] | None = field(
        default=None, metadata=described("Added to those of the source.", schema=LABELS)
    )
    network: str | Mapping[str, Any] | None = field(
        default=None,
        metadata=described("Replaces the rules; as in a create request.", schema=NETWORK),
    )
    key_id: str | None = None
    """The API key of the request; None for the operator."""


@dataclass(frozen=True, slots=True)
class Forked:
    """What became of a fork."""

    results: tuple[Info | SandkastenError, ...]
    """The sandbox or the error of each copy that was requested."""
    not_kept: NotKept
    """What the source had that no copy has."""


@dataclass(frozen=True, slots=True)
class Info:
    """One sandbox. Times are Unix seconds."""

    id: str
    image: str
    status: SandboxStatus
    created_at: Timestamp
    expires_at: Timestamp
    """When it ends if nothing more is asked of it, as far as this process knows."""
    backend: str = ""
    profile: str = "hardened"
    limits: Annotated[Limits, Public(public_limits, read_public_limits)] = field(
        default_factory=Limits
    )
    created: bool = False
    """False when `session_key` found one that was already there."""
    idle_timeout_s: float = field(default=0.0, metadata={"json": "idle_timeout_seconds"})
    lifetime_s: float = field(default=0.0, metadata={"json": "lifetime_seconds"})
    session_key: str | None = None
    acquire_source: Annotated[Literal["pool", "cold"], OPEN] = "cold"
    acquire_detail: str = ""
    workspace_id: str | None = None
    """The workspace's name; None for one that goes with the sandbox."""
    workspace_shared: bool = False
    snapshot: str | None = None
    """The snapshot that it was created from."""
    mounts: tuple[Mounted, ...] = ()
    """The operator's host mounts and the sets of packages it has."""
    gpus: str | None = None
    """A number, `all`, or device ids with commas between; None: no GPU."""
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_TEXT)
    env_names: tuple[str, ...] = ()
    unenforced: tuple[Unenforced, ...] = ()
    warnings: tuple[str, ...] = ()
    network: Any = "none"
    """As the contract writes it: `none`, `full` or an object of rules."""
    cwd: FileName = WORKSPACE
    workdir: str = WORKSPACE
    tenant: str = DEFAULT_TENANT
    usage: SessionUsage | None = None
    """Its resource use, in a list that was requested with `usage`."""

    @property
    def sandbox_id(self) -> str:
        return self.id

    @property
    def session_id(self) -> str:
        return self.id


def public_fields(info: Info) -> dict[str, object]:
    """Return the fields that every answer about a sandbox has, by their public names."""
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
    """Network traffic of a sandbox. With mode `none` there is no network and no traffic."""

    mode: str = "none"
    """none, full or rules."""
    rules: int = 0
    """Rules that allow or deny."""
    connections: int = 0
    """Open ones."""
    rx_bytes: int = 0
    tx_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics: `usage` is counted by the kernel outside, the rest is reported by the runner.

    The runner of a paused sandbox cannot answer: its fields are None.
    """

    usage: Usage
    uptime_ms: int = 0
    processes: int | None = None
    running: int | None = None
    """Commands that have not ended."""
    shells: int | None = None
    connections: int | None = None
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
    """Counts of what a start found from an earlier process, and what it did."""

    kept: int = 0
    """Known and alive; their running commands are followed again."""
    adopted: int = 0
    """Alive and not known to the journal: made by another process, now in its care."""
    finished: int = 0
    """Half-made or half-destroyed by a process that died; gone now."""
    removed: int = 0
    """Held by a backend or by an unreadable row, without an owner."""
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
