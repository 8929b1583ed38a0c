"""What each backend can do, and what a survey found of it. Pure.

`doctor`, `GET /v1/backends` and docs/reference/backends.md show these values. What an option of the
settings opens or closes belongs in `notes`.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  (json_codec reads it)
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.limits import Unenforced  # noqa: TC001  (json_codec reads it)

if TYPE_CHECKING:
    from collections.abc import Collection

    from sandkasten.model.sandbox.readiness import Readiness

ALL_NETWORKS: Final = ("none", "full", "rules")
ALL_LIMITS: Final = ("cpu", "memory", "pids", "workspace")


@dataclass(frozen=True, slots=True)
class BackendFeatures:
    """What a backend can do where everything that it needs is there. The defaults are those of a
    backend about which nothing is known.
    """

    summary: str = ""
    """What isolates, in a few words."""
    sessions: bool = False
    """Whether sandboxes stay; without it, a backend runs only one-shots."""
    networks: tuple[str, ...] = ()
    """Some of `none`, `full` and `rules`."""
    network_updates: bool = False
    """Whether the rules of a living sandbox can be changed."""
    secrets: bool = False
    """Whether stored secrets can be inserted into requests, and TLS inspected."""
    limits: tuple[str, ...] = ()
    """The limits of `ALL_LIMITS` that the platform enforces; `unenforced` has those that the
    machine at hand does not.
    """
    workspaces: bool = False
    """Whether workspaces with a name outlive their sandboxes."""
    mounts: bool = False
    """Whether directories of the host can be mounted."""
    packages: bool = False
    """Whether `pip_packages` and `npm_packages` are installed."""
    dev_profile: bool = False
    """Whether the user can be root inside."""
    pause: bool = False
    snapshots: bool = False
    """Whether the files of a living sandbox can be kept as a snapshot."""
    resize: bool = False
    """Whether the limits of a sandbox can be changed, so that one of the warm pool serves requests
    with other limits.
    """
    gpus: bool = False
    notes: tuple[str, ...] = ()
    """One sentence for each difference that a field cannot express."""


@dataclass(frozen=True, slots=True)
class BackendReport:
    """One backend of an engine: what it can do, and whether it is ready."""

    name: str
    default: bool = False
    """Whether a request gets it that no rule and no option sends elsewhere."""
    isolation: str = "unknown"
    """`standard`: one kernel, shared with the host; `gvisor`: a second one in between; `unknown`:
    not examined.
    """
    ready: bool = False
    reason: str = ""
    remedy: str = ""
    features: BackendFeatures = BackendFeatures()
    unenforced: tuple[Unenforced, ...] = ()
    """The limits that this machine, or the platform of the backend, does not enforce."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels of a named backend."""
    sandboxes: int | None = None
    """How many it has now, with those of the warm pool; None: not known."""
    max_sandboxes: int | None = None
    """How many a named backend may have; None: any number."""


def features_here(features: BackendFeatures, readiness: Readiness) -> BackendFeatures:
    """Return the features without what a probe found missing on this machine."""
    lacking: dict[str, Any] = dict.fromkeys(readiness.lacks, False)
    return replace(features, **lacking)


_NAMES: Final = {
    "sessions": "sessions",
    "network_updates": "changes of network rules",
    "secrets": "secrets",
    "workspaces": "named workspaces",
    "mounts": "host mounts",
    "packages": "packages",
    "dev_profile": "dev profile",
    "pause": "pause",
    "snapshots": "snapshots",
    "resize": "resize",
    "gpus": "GPUs",
}
"""The features that a backend has or lacks, as they are shown."""


def supported(features: BackendFeatures, unenforced: Collection[Unenforced] = ()) -> list[str]:
    """Return what a backend can do, without the limits that are not enforced, for a person."""
    networks = ", ".join(features.networks)
    limits = ", ".join(_enforced(features, unenforced))
    return [
        *((f"network {networks}",) if networks else ()),
        *((f"limits {limits}",) if limits else ()),
        *(shown for name, shown in _NAMES.items() if getattr(features, name)),
    ]


def unsupported(features: BackendFeatures, unenforced: Collection[Unenforced] = ()) -> list[str]:
    """Return what a backend cannot do, with the limits that are not enforced, for a person."""
    networks = [network for network in ALL_NETWORKS if network not in features.networks]
    enforced = _enforced(features, unenforced)
    limits = [limit for limit in ALL_LIMITS if limit not in enforced]
    return [
        *((f"network {', '.join(networks)}",) if networks else ()),
        *((f"limits {', '.join(limits)}",) if limits else ()),
        *(shown for name, shown in _NAMES.items() if not getattr(features, name)),
    ]


def _enforced(features: BackendFeatures, unenforced: Collection[Unenforced]) -> list[str]:
    missing = {limit.limit for limit in unenforced}
    return [limit for limit in features.limits if limit not in missing]
