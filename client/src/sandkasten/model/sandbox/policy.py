"""The operator's policy and how it applies to a request. Pure; each refusal names its rule.

Knows nothing about settings files, backends or clocks. Every function returns a complete value or
raises a class of `errors`; nothing is clamped silently.
"""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, PolicyDenied, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.field_patterns import HOSTNAME, PRINTABLE, form
from sandkasten.model.numbers import number
from sandkasten.model.sandbox.limits import Limits
from sandkasten.model.sandbox.network_policy import NetworkCeiling
from sandkasten.model.sandbox.snapshot import SnapshotRules
from sandkasten.model.sandbox.workspace import DiskRules, WorkspaceRules
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.backends.backend_rules import BackendRule
    from sandkasten.model.backends.named_backends import NamedBackendRules
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import Profile
    from sandkasten.model.sandbox.host_mounts import MountRule
    from sandkasten.model.sandbox.sandbox_options import Number, SandboxOptions

DEFAULT_BLOCKED_PATHS = ("/etc/passwd", "/etc/shadow", "/root", "/proc", "/sys", "/dev")

_HOSTNAME: Final = form(HOSTNAME)
_SESSION_KEY: Final = form(PRINTABLE + "{1,256}")


@dataclass(frozen=True, slots=True)
class Policy:
    """The operator's rules for every sandbox of one engine."""

    enabled: bool = True
    """Whether sandboxes may be created at all: the operator's switch."""
    code_mode: bool = True
    """Whether agents may have a sandbox with state."""
    default_image: str | None = None
    """The image of a request that names none; None: the alias of what it runs."""
    limits: Limits = field(default_factory=Limits)
    """What a sandbox gets that asked for nothing."""
    ttl_s: float = 1800.0
    idle_timeout_s: float = 1800.0
    lifetime_s: float = 4 * 3600.0
    """Also the most a request may ask for."""
    max_retain_s: float = 3600.0
    """The longest that a session may be kept after the run of an agent or a workflow."""
    blocked_paths: tuple[str, ...] = DEFAULT_BLOCKED_PATHS
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What the operator lets in of its own environment; the caller's names win."""
    workspaces: WorkspaceRules = field(default_factory=WorkspaceRules)
    snapshots: SnapshotRules = field(default_factory=SnapshotRules)
    disk: DiskRules = field(default_factory=DiskRules)
    mounts: tuple[MountRule, ...] = ()
    """What of the host may be shown, read-only; a request can only name one of these."""
    reclaim_after_s: float | None = None
    """Seconds of rest after which a sandbox gives back the memory it can spare; None: never."""
    isolation: str | None = None
    """What a request gets that names neither isolation nor backend; None: standard."""
    isolation_minimum: str | None = None
    """The weakest isolation a request may have; None: any."""
    named_backends: Mapping[str, NamedBackendRules] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """The rules of each named backend, in the order of the settings."""
    backends: tuple[BackendRule, ...] = ()
    """Which backend a request gets that names none; without a matching rule the default one."""
    ceiling: Mapping[str, Number] = field(default_factory=lambda: MappingProxyType({}))
    """The most a request may ask for, by public names of limits; a name that is missing: any."""
    gpus: int = 0
    """The most GPUs a request may have, or `gpus.ALL`."""
    allow_network: bool = False
    """Whether an agent may ask for a network at all."""
    readonly_rootfs: bool = True
    """Whether the root of a hardened sandbox is read-only; that of the host image always is."""
    network_default: bool = False
    """Whether a request that names no network gets all that it may have."""
    network: NetworkCeiling = field(default_factory=NetworkCeiling)
    """What requests may reach at most."""


@dataclass(frozen=True, slots=True)
class Lease:
    """How long a sandbox lives: without activity, and in total."""

    idle_timeout_s: float
    lifetime_s: float


def lease_for(options: SandboxOptions, policy: Policy) -> Lease:
    """Return the smallest idle time that was asked for, within the operator's lifetime."""
    lifetime = policy.lifetime_s
    if options.lifetime_seconds is not None:
        lifetime = checked_duration("lifetime_seconds", options.lifetime_seconds, policy)
    requested = [
        checked_duration(name, value, policy)
        for name, value in (
            ("ttl_seconds", options.ttl_seconds),
            ("idle_timeout_seconds", options.idle_timeout_seconds),
        )
        if value is not None
    ]
    idle = min(requested) if requested else min(policy.ttl_s, policy.idle_timeout_s)
    return Lease(idle_timeout_s=min(idle, lifetime), lifetime_s=lifetime)


def checked_duration(name: str, value: object, policy: Policy) -> float:
    """Return a time in seconds, which may not exceed the operator's lifetime of a sandbox."""
    try:
        return number(name, value, low=1, high=policy.lifetime_s)
    except InvalidRequest as exc:
        exc.hint = (
            f"choose from 1 to {policy.lifetime_s:g} seconds; the operator sets the maximum "
            "(session_max_lifetime_seconds)"
        )
        raise


def checked_hostname(hostname: str | None) -> str:
    """Return the name, which must be one label as RFC 1123 defines it."""
    if hostname is None:
        return "sandbox"
    if not isinstance(hostname, str) or not _HOSTNAME.match(hostname):
        raise InvalidRequest(
            f"{shown(str(hostname))} is not a valid host name",
            hint="use 1 to 63 letters, digits or hyphens, without a hyphen at either end",
            field="hostname",
        )
    return hostname


def checked_profile(profile: str | None) -> Profile:
    if profile in (None, "hardened"):
        return "hardened"
    if profile == "dev":
        return "dev"
    raise InvalidRequest(
        f"{shown(str(profile))} is not a valid profile",
        hint=did_you_mean(str(profile), ("hardened", "dev")),
        field="profile",
    )


def check_profile_on(profile: Profile, image: Image) -> None:
    """Raise UnsupportedByBackend if root inside would have the host's own root file system."""
    if profile == "dev" and image.kind == "host":
        raise UnsupportedByBackend(
            "profile dev requires an image: nothing can be installed into the host's own /usr",
            hint="name an image (sandkasten image ls), or use profile: hardened",
            profile="dev",
        )


def check_enabled(policy: Policy) -> None:
    """Raise PolicyDenied if the operator has turned sandboxes off."""
    if not policy.enabled:
        raise PolicyDenied(
            "the operator has turned sandboxes off (policy.enabled is false)",
            hint="ask the operator; STATION_SANDBOX_ENABLED and policy.enabled turn them on",
            rule="policy.enabled",
        )


def checked_session_key(key: str | None) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str) or not _SESSION_KEY.match(key):
        raise InvalidRequest(
            "session_key must be 1 to 256 printable characters",
            hint="for instance workflow:<run>:<name>",
            field="session_key",
        )
    return key
