"""One row of the ledger: what must be known about a sandbox after every process has ended."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  (the codec reads the annotations)
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Any, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.ids import SandboxId  # noqa: TC001
from sandkasten.model.json_codec import Public
from sandkasten.model.sandbox.host_mounts import Mounted  # noqa: TC001
from sandkasten.model.sandbox.lifecycle import State  # noqa: TC001
from sandkasten.model.sandbox.limits import Limits, Unenforced  # noqa: TC001
from sandkasten.model.sandbox.network_policy import read_network

Acquired = Literal["cold", "pool", "spare", "internal"]


@dataclass(frozen=True, slots=True)
class Record:
    id: SandboxId
    state: State
    backend: str
    image: str
    profile: str
    limits: Limits
    created_at: float
    """Wall clock, for people."""
    created_boottime: float
    """Seconds since boot: TTLs count on this one, it cannot jump."""
    boot_id: str
    idle_timeout_s: float
    lifetime_s: float
    session_key: str | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    env_names: tuple[str, ...] = ()
    owner_pid: int = 0
    """Who made it, with its start time: a row stuck in CREATING whose owner is gone is litter."""
    owner_start: int = 0
    unenforced: tuple[Unenforced, ...] = ()
    warnings: tuple[str, ...] = ()
    image_id: str = ""
    """Which content of the store the image's name meant; keeps its layers from removal.

    Empty for an image that only the backend has: the store would not find its layers."""
    workspace_id: str | None = None
    workspace_shared: bool = False
    acquired: Acquired = "cold"
    """Created for a request; or claimed from the warm pool; or unclaimed in the warm pool;
    or created to serve the files of a named workspace, and in no list."""
    acquire_detail: str = ""
    """Why it was not taken from the warm pool."""
    pool_kind: str = ""
    """Identifies the kind of an unclaimed sandbox of the warm pool."""
    snapshot: str | None = None
    """The snapshot that it was created from."""
    mounts: tuple[Mounted, ...] = ()
    gpus: str | None = None
    tenant: str = DEFAULT_TENANT
    network: Annotated[Any, Public(lambda value: value, read_network)] = "none"
    """The network policy as the contract writes it."""
    network_bytes_per_day: int | None = None
    """The quota of the tenant under which its network was opened last."""
    place: str = ""
    """The part of the backend's platform that has it; see `CellSpec.place`."""
    hostname: str | None = None
    """None: made by a version that did not record it; so are the two below."""
    pip_packages: tuple[str, ...] | None = None
    npm_packages: tuple[str, ...] | None = None
    env_digest: str = ""
    """See `session_joins.variables`."""

    @property
    def hidden(self) -> bool:
        """Return whether this is internal: in no list, no journal and no quota."""
        return self.acquired in ("spare", "internal")
