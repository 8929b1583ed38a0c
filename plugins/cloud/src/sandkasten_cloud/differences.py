"""What sandboxes at a provider do not have, as data: refusals, `doctor` and a page are made of it.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from sandkasten.errors import UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.network_limits import Allowance, NetworkLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.limits import Unenforced
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten_cloud.provider import NetworkMode

Kind = Literal["refused", "differs"]
RULES: Final = "rules, limits, secrets and inspection of a network"


@dataclass(frozen=True, slots=True)
class Difference:
    subject: str
    kind: Kind
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Traits:
    """What a provider offers."""

    title: str
    """Its name in sentences."""
    networks: frozenset[NetworkMode]
    """Some of `none` and `full`."""
    unenforced: tuple[Unenforced, ...]
    """Limits that its machines do not have."""
    own: tuple[Difference, ...] = ()
    """Differences besides those that all providers share."""

    @property
    def differences(self) -> tuple[Difference, ...]:
        networks = tuple(
            Difference(f"network: {network}", "refused", why, hint)
            for network, why, hint in _NETWORKS
            if network not in self.networks
        )
        return (*SHARED, *networks, *self.own)


SHARED: Final = (
    Difference(
        "images of this daemon",
        "refused",
        "the provider has images of its own and does not see the store",
        "name an image that the provider knows",
    ),
    Difference(
        RULES,
        "refused",
        "Sandkasten cannot run an egress process beside the machine",
        "use network: none or full, or the local, oci, docker or kubernetes backend",
    ),
    Difference(
        "change of the network",
        "refused",
        "the network of a machine is chosen when the machine is created",
        "create a sandbox with the other network",
    ),
    Difference(
        "named workspaces",
        "refused",
        "the disk of a machine ends with it",
        "use the file store to carry files from one session to the next",
    ),
    Difference(
        "mounts and packages",
        "refused",
        "the provider does not have this machine's files",
        "use an image that contains them",
    ),
    Difference(
        "profile: dev",
        "refused",
        "code must not be root, because it could then replace the runner",
        "use the hardened profile, or the local backend",
    ),
    Difference(
        "defaults.readonly_rootfs: false",
        "refused",
        "only root can write to the root of a machine, and code is not root",
        "set defaults.readonly_rootfs: true",
    ),
    Difference("gpus", "refused", "machines have no devices", "use the docker or the oci backend"),
    Difference("pause", "refused", "machines are not paused", "end the session"),
    Difference("resize", "refused", "machines keep their size", "create a larger sandbox"),
    Difference(
        "usage",
        "differs",
        "only the provider counts usage; memory and processor time are not shown",
    ),
    Difference(
        "several daemons",
        "differs",
        "a sandbox belongs to the data directory that made it, which has its key",
    ),
)
_NETWORKS: Final[tuple[tuple[NetworkMode, str, str], ...]] = (
    (
        "none",
        "the provider cannot create machines without a network",
        "request network: full, or use another backend",
    ),
    ("full", "machines of the provider have no network", "request network: none"),
)


def check(spec: CellSpec, backend: str, traits: Traits) -> None:
    """Raise UnsupportedByBackend for a request that the provider cannot satisfy, before anything
    is made.
    """
    refusal = network_refusal(spec.network, backend, traits)
    if refusal is not None:
        raise refusal
    tests: dict[str, Callable[[CellSpec], bool]] = {
        "images of this daemon": lambda cell_spec: cell_spec.image.kind != "engine",
        RULES: lambda cell_spec: cell_spec.inspection is not None,
        "named workspaces": lambda cell_spec: cell_spec.workspace is not None,
        "mounts and packages": lambda cell_spec: bool(cell_spec.mounts),
        "profile: dev": lambda cell_spec: cell_spec.profile == "dev",
        "defaults.readonly_rootfs: false": lambda cell_spec: cell_spec.writable_root,
        "gpus": lambda cell_spec: cell_spec.gpus is not None,
    }
    for subject, is_asked in tests.items():
        if is_asked(spec):
            raise refused(subject, backend, traits)
    for name, value in spec.env.items():
        try:
            value.encode()
        except UnicodeEncodeError as exc:
            raise UnsupportedByBackend(
                f"backend {backend} does not support bytes that are not UTF-8, as in variable "
                f"{name}: the provider would change them",
                hint="set the variable for each command, or write the bytes to a file",
                field="env",
            ) from exc


def network_refusal(
    policy: NetworkPolicy, backend: str, traits: Traits
) -> UnsupportedByBackend | None:
    wanted = network_mode(policy)
    if wanted is None:
        return refused(RULES, backend, traits)
    if wanted not in traits.networks:
        return refused(f"network: {wanted}", backend, traits)
    return None


def network_mode(policy: NetworkPolicy) -> NetworkMode | None:
    """Return which network of a machine a policy stands for; None if it has rules."""
    if policy.closed:
        return "none"
    by_rule = policy.deny or policy.dry_run or policy.inspected or not policy.full
    limited = policy.limits != NetworkLimits() or policy.allowance not in (None, Allowance())
    return None if by_rule or limited else "full"


def refused(subject: str, backend: str, traits: Traits) -> UnsupportedByBackend:
    difference = next(entry for entry in traits.differences if entry.subject == subject)
    return UnsupportedByBackend(
        f"backend {backend} does not support {difference.subject}: {difference.what}",
        hint=difference.hint,
        backend=backend,
    )
