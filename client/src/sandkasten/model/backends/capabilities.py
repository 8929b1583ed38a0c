"""The capabilities of a backend: one value that it brings itself. Pure.

Planner, tiers, `doctor`, `GET /v1/backends` and the reference read this value; nothing else in the
project lists backends by name. What an option of the settings opens or closes is in the value that
the backend of a running engine has; the value of the plugin is the one without settings.
"""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.backends.backend_features import BackendFeatures
from sandkasten.model.sandbox.isolation_levels import MINIMA, weakest_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.images.pull_rules import PullMode
    from sandkasten.model.sandbox.cell_spec import CellSpec

_NO_PLACES: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Closed:
    """Why a backend makes no sandbox until the operator changes a setting."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The defaults are those of a backend about which nothing is known: it isolates nothing that
    was examined, and makes nothing but a sandbox without a network.
    """

    strength: int = 0
    """1: one kernel, shared with the host. 2: a second kernel in between. How a provider isolates
    its machines was not examined: they count as containers do.
    """
    features: BackendFeatures = BackendFeatures()
    """The part that clients are shown."""
    external: bool = False
    """Whether a platform holds the sandboxes (a container engine, a cluster, a provider). It can be
    unreachable while they live on.
    """
    platform: str = "platform"
    """The name of that platform in messages."""
    named_by: str = ""
    """The key of its settings that configures more backends of its kind by name; empty: there is
    none.
    """
    closed: Closed | None = None
    """Why it makes no sandbox now; None: it does."""
    run_once: bool = False
    """Whether it only runs one command to its end: it implements `ports.RunsOnce`."""
    own_images: bool = False
    """Whether it has images besides those of the store, and cannot show the host's: it implements
    `ports.KeepsImages`.
    """
    pulls: PullMode = "never"
    """When a request lets it fetch a missing image of its own."""
    pull_command: str = ""
    """The command with which its operator brings an image there; empty: there is none."""
    own_workspaces: bool = False
    """Whether it may keep named workspaces itself: it implements `ports.KeepsWorkspaces`."""
    maintains_workspaces: bool = False
    """Whether it enlarges them and clears interrupted copies: `ports.MaintainsWorkspaces`."""
    remote: bool = False
    """Whether its sandboxes may run where this machine's files cannot be mounted: it implements
    `ports.Remote`.
    """
    refuses_networks: bool = False
    """Whether its platform decides about networks: it implements `ports.RefusesNetworks`."""
    fixed_network: bool = False
    """Whether the network of a sandbox cannot be changed after it was made."""
    copies_files: bool = False
    """Whether the files of a living sandbox can be copied, for snapshots: its cells implement
    `ports.CopiesFiles`, and it makes sandboxes with `CellSpec.files`.
    """
    resizes: bool = False
    """Whether the limits of a living sandbox can be changed here: it implements `ports.Resizes`."""
    counts_after_end: bool = False
    """Whether it knows the counters of a sandbox that has ended: `ports.CountsAfterEnd`."""
    reads_changes: bool = False
    """Whether what a command changed in a root can be read, so that images can be built: its cells
    implement `ports.Readable`.
    """
    writable_mounts: bool = True
    """Whether a host mount can be writable."""
    create_timeout_s: float | None = None
    """After which time a create has failed; None: as on a backend of this machine."""
    places: Mapping[str, str] = field(default_factory=lambda: _NO_PLACES)
    """The place of the new sandboxes of each tenant that has its own."""
    default_place: str = ""
    """The place of all other tenants; empty: there are no places. Otherwise the backend implements
    `ports.Places`.
    """

    @property
    def has_network(self) -> bool:
        """Whether its sandboxes can have a network at all."""
        return any(network != "none" for network in self.features.networks)

    def place(self, tenant: str) -> str:
        """Return the place of a tenant's new sandboxes; empty if there is only one."""
        return self.places.get(tenant, self.default_place)

    @property
    def isolation(self) -> str:
        """The strongest level that it satisfies."""
        met = [level for level in MINIMA if weakest_of(level) <= self.strength]
        return max(met, key=weakest_of, default="unknown")


UNKNOWN: Final = Capabilities()


def check_open(backend: str, capabilities: Capabilities) -> None:
    """Raise BackendUnavailable if the settings close the backend."""
    closed = capabilities.closed
    if closed is not None:
        raise BackendUnavailable(closed.reason, hint=closed.remedy, backend=backend)


def check_features(backend: str, features: BackendFeatures, spec: CellSpec) -> None:
    """Raise UnsupportedByBackend if a sandbox requires a feature that the backend does not list."""
    network = "none" if spec.network.closed else "full" if spec.network.full else "rules"
    content_only = all(mount.content for mount in spec.mounts)
    required = {
        f"network {network}": network in features.networks,
        "secrets": spec.inspection is None or features.secrets,
        "named workspaces": spec.workspace is None or features.workspaces,
        "host mounts": content_only or features.mounts,
        "packages": not spec.mounts or features.packages or not content_only,
        "profile dev": spec.profile == "hardened" or features.dev_profile,
        "GPUs": spec.gpus is None or features.gpus,
    }
    for feature, supported in required.items():
        if not supported:
            raise UnsupportedByBackend(
                f"backend {backend} does not support {feature}",
                hint="use a backend that does: sandkasten doctor --all lists what each can do",
                backend=backend,
            )
