"""The operator's policy and how it applies to a request. Pure; each refusal names its rule.

Knows nothing about settings files, backends or clocks. Every function returns a complete value or
raises a class of `errors`; nothing is clamped silently.
"""

from __future__ import annotations

from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidRequest, PolicyDenied, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.field_patterns import HOSTNAME, PRINTABLE, form
from sandkasten.model.json_codec import ShapeError
from sandkasten.model.numbers import number, whole
from sandkasten.model.sandbox.gpus import MAX_GPUS
from sandkasten.model.sandbox.limits import MAX_KEPT_BYTES, MIB, Limits
from sandkasten.model.sandbox.network_policy import NetworkCeiling
from sandkasten.model.sandbox.workspace import DiskRules, WorkspaceRules
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.model.backends.backend_rules import BackendRule
    from sandkasten.model.backends.docker_engines import EngineRules
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import Profile
    from sandkasten.model.sandbox.host_mounts import MountRule
    from sandkasten.model.sandbox.sandbox_options import Number, SandboxOptions

DEFAULT_BLOCKED_PATHS = ("/etc/passwd", "/etc/shadow", "/root", "/proc", "/sys", "/dev")

_TEBI_MB = 1024 * 1024
_NO_CEILING: Mapping[str, Number] = MappingProxyType({})
# As wide as any operator may set it: what is read was checked where it was created.
_WIDEST: Final = Limits(max_exec_timeout_s=86_400.0)
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
    run_sandboxes: int = 32
    """Most sandboxes of one run or one client of the tools; a called agent is a run of its own."""
    blocked_paths: tuple[str, ...] = DEFAULT_BLOCKED_PATHS
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What the operator lets in of its own environment; the caller's names win."""
    workspaces: WorkspaceRules = field(default_factory=WorkspaceRules)
    disk: DiskRules = field(default_factory=DiskRules)
    mounts: tuple[MountRule, ...] = ()
    """What of the host may be shown, read-only; a request can only name one of these."""
    reclaim_after_s: float | None = None
    """Seconds of rest after which a sandbox gives back the memory it can spare; None: never."""
    isolation: str | None = None
    """What a request gets that names neither isolation nor backend; None: standard."""
    isolation_minimum: str | None = None
    """The weakest isolation a request may have; None: any."""
    docker_engines: Mapping[str, EngineRules] = field(default_factory=lambda: MappingProxyType({}))
    """Named Docker Engines by the name of their backend, in the order of the settings."""
    backends: tuple[BackendRule, ...] = ()
    """Which backend a request gets that names none; without a matching rule the default one."""
    ceiling: Mapping[str, Number] = field(default_factory=lambda: _NO_CEILING)
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
class _Limit:
    """One public limit: its field, its bounds in public units, and the conversions."""

    field: str
    low: float
    high: float
    inward: Callable[[float], Number] = float
    outward: Callable[[Number], Number] = float
    integral: bool = False
    alias: bool = False


def _mb(field_name: str, *, low: int = 1, alias: bool = False) -> _Limit:
    return _Limit(
        field_name,
        low,
        _TEBI_MB,
        inward=lambda v: int(v * MIB),
        outward=lambda v: v // MIB if isinstance(v, int) and v % MIB == 0 else v / MIB,
        alias=alias,
    )


def _count(field_name: str, low: int, high: int, *, alias: bool = False) -> _Limit:
    return _Limit(field_name, low, high, inward=int, outward=int, integral=True, alias=alias)


_LIMITS: dict[str, _Limit] = {
    "cpu_limit": _Limit("cpus", 0.01, 1024),
    "cpu_millicores": _Limit(
        "cpus", 10, 1_024_000, lambda v: v / 1000, lambda v: int(v * 1000), alias=True
    ),
    # Under 16 MB the runner and one shell have no room left to say what went wrong.
    "mem_limit_mb": _mb("memory_bytes", low=16),
    "memory_mb": _mb("memory_bytes", low=16, alias=True),
    # The runner, a supervisor, a shell and one pipeline.
    "pids_limit": _count("pids", 8, 4_194_304),
    "workspace_mb": _mb("workspace_bytes"),
    "tmp_mb": _mb("tmp_bytes"),
    # Below it the launcher and the runner have no room for their own descriptors.
    "max_open_files": _count("open_files", 128, 1_048_576),
    "exec_timeout_seconds": _Limit("exec_timeout_s", 0.001, 86_400),
    "max_exec_timeout_seconds": _Limit("max_exec_timeout_s", 0.001, 86_400),
    "max_stdout_bytes": _count("stdout_bytes", 0, MAX_KEPT_BYTES),
    "max_stderr_bytes": _count("stderr_bytes", 0, MAX_KEPT_BYTES),
    "max_artifact_bytes": _count("artifact_bytes", 0, 1024 * MIB),
    "max_artifacts_count": _count("artifacts", 0, 10_000),
    "max_file_size_bytes": _count("tool_file_bytes", 0, 1024 * MIB),
    "max_files": _count("tool_files", 0, 1_000_000),
}

LIMIT_NAMES: tuple[str, ...] = tuple(_LIMITS)
# Deadlines have a ceiling of their own, `max_exec_timeout_seconds`.
CEILING_NAMES: tuple[str, ...] = tuple(
    name for name, known in _LIMITS.items() if not known.alias and "timeout" not in name
)


def limits_schema() -> dict[str, Any]:
    """Return the keywords of a JSON Schema for limits by their public names."""
    properties = {
        name: {
            "type": "integer" if known.integral else "number",
            "minimum": known.low,
            "maximum": known.high,
        }
        for name, known in _LIMITS.items()
    }
    properties["gpus"] = {"type": "integer", "minimum": 0, "maximum": MAX_GPUS}
    names: dict[str, list[str]] = {}
    for name, known in _LIMITS.items():
        names.setdefault(known.field, []).append(name)
    doubles = [{"not": {"required": same}} for same in names.values() if len(same) > 1]
    return {"properties": properties, "additionalProperties": False, "allOf": doubles}


def parse_limits(
    asked: Mapping[str, Number], base: Limits, ceiling: Mapping[str, Number] = _NO_CEILING
) -> Limits:
    """Return `base` with the requested limits; InvalidRequest for unknown or contradictory ones.

    A request may lower `max_exec_timeout_seconds` but never raise it over the operator's. A limit
    over the ceiling is PolicyDenied and names its setting.
    """
    if not asked:
        return base
    values: dict[str, Number] = {}
    said_by: dict[str, str] = {}
    for name, value in asked.items():
        known = _LIMITS.get(name) if isinstance(name, str) else None
        if known is None:
            raise InvalidRequest(
                f"{shown(str(name))} is not a valid limit",
                hint=did_you_mean(str(name), _LIMITS),
                field="limits",
            )
        if known.integral:
            checked: float = whole(name, value, low=int(known.low), high=int(known.high))
        else:
            checked = number(name, value, low=known.low, high=known.high)
        figure = known.inward(checked)
        if known.field in values and values[known.field] != figure:
            raise InvalidRequest(
                f"limits {said_by[known.field]} and {name} contradict each other",
                hint="they name the same limit; give one of them",
                field="limits",
            )
        values[known.field], said_by[known.field] = figure, name
    _check_ceiling(values, said_by, ceiling)
    limits = replace(base, **values)  # type: ignore[arg-type]
    if limits.max_exec_timeout_s > base.max_exec_timeout_s:
        raise InvalidRequest(
            f"max_exec_timeout_seconds must be at most {base.max_exec_timeout_s:g} here",
            hint="the operator sets defaults.max_exec_timeout_ms",
            field="limits",
        )
    if limits.exec_timeout_s > limits.max_exec_timeout_s:
        if "exec_timeout_s" in values:
            raise InvalidRequest(
                f"exec_timeout_seconds must be at most {limits.max_exec_timeout_s:g}",
                hint="lower it, or run the command in the background",
                field="limits",
            )
        limits = replace(limits, exec_timeout_s=limits.max_exec_timeout_s)
    return limits


def _check_ceiling(
    values: Mapping[str, Number], said_by: Mapping[str, str], ceiling: Mapping[str, Number]
) -> None:
    for name, most in ceiling.items():
        known = _LIMITS[name]
        if known.field in values and values[known.field] > known.inward(most):
            said = said_by[known.field]
            raise PolicyDenied(
                f"{said} is more than policy.max.{name} ({most:g}) allows",
                hint="ask for less, or have the operator raise that setting",
                rule=f"policy.max.{name}",
                field=f"limits.{said}",
            )


def public_limits(limits: Limits, *names: str) -> dict[str, Number]:
    """Return the limits under their public names and in public units; with `names` only these."""
    return {
        name: known.outward(getattr(limits, known.field))
        for name, known in _LIMITS.items()
        if (name in names if names else not known.alias)
    }


def limit_field(name: str) -> str:
    """Return the field of `Limits` that has a limit of this public name."""
    return _LIMITS[name].field


def read_public_limits(given: object) -> Limits:
    """Return the limits that `public_limits` gave; unknown names are a newer version's."""
    if not isinstance(given, dict | None):
        raise ShapeError("limits", "an object")
    known = {name: value for name, value in (given or {}).items() if name in LIMIT_NAMES}
    try:
        return parse_limits(known, _WIDEST) if known else Limits()
    except InvalidRequest as exc:
        raise ShapeError("limits", "valid limits") from exc


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
    asked = [
        checked_duration(name, value, policy)
        for name, value in (
            ("ttl_seconds", options.ttl_seconds),
            ("idle_timeout_seconds", options.idle_timeout_seconds),
        )
        if value is not None
    ]
    idle = min(asked) if asked else min(policy.ttl_s, policy.idle_timeout_s)
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
