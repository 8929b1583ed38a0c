"""Settings of limits: `defaults.*`, the maxima `policy.max.*`, and sizes of named workspaces.

Fields of `LimitDefaults` and `LimitCeilings` have the public names of limits.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from sandkasten.errors import InvalidConfiguration, InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import numbers
from sandkasten.model.sandbox.limit_names import parse_limits, public_limits
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten.model.sandbox.snapshot import SnapshotRules
from sandkasten.model.sandbox.workspace import DiskRules, WorkspaceRules
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import boolean, choice, number, seconds
from sandkasten_runtime.assembly.settings.core_parsers import network_default

_MAX_WORKSPACE_MB = 1024 * 1024
_MAX_WORKSPACES = 1_000_000


@dataclass(frozen=True, slots=True)
class LimitDefaults:
    """Limits of a sandbox whose request names none; None: as in `model.sandbox.limits`."""

    cpu_limit: float | None = setting("defaults.cpu_limit", number, None, "Processors.")
    mem_limit_mb: float | None = setting(
        "defaults.mem_limit_mb", number, None, "Memory; swap is always 0."
    )
    pids_limit: float | None = setting(
        "defaults.pids_limit", number, None, "Processes and threads."
    )
    workspace_mb: float | None = setting(
        "defaults.workspace_mb", number, None, "Size of a workspace."
    )
    tmp_mb: float | None = setting("defaults.tmp_mb", number, None, "Size of /tmp.")
    max_open_files: float | None = setting(
        "defaults.max_open_files", number, None, "Open files of one process."
    )
    exec_timeout_seconds: float | None = setting(
        "defaults.exec_timeout_seconds",
        seconds,
        None,
        "Deadline of a command whose request names none.",
        aliases=("STATION_SANDBOX_DEFAULT_TIMEOUT_SECONDS",),
    )
    max_stdout_bytes: float | None = setting(
        "defaults.max_stdout_bytes",
        number,
        None,
        "How much of a command's stdout is kept.",
        aliases=("STATION_SANDBOX_MAX_STDOUT_BYTES",),
    )
    max_stderr_bytes: float | None = setting(
        "defaults.max_stderr_bytes",
        number,
        None,
        "How much of a command's stderr is kept.",
        aliases=("STATION_SANDBOX_MAX_STDERR_BYTES",),
    )
    max_artifact_bytes: float | None = setting(
        "defaults.max_artifact_bytes",
        number,
        None,
        "Largest artifact that a one-shot returns.",
        aliases=("STATION_SANDBOX_MAX_ARTIFACT_BYTES",),
    )
    max_artifacts_count: float | None = setting(
        "defaults.max_artifacts_count",
        number,
        None,
        "How many artifacts a one-shot returns.",
        aliases=("STATION_SANDBOX_MAX_ARTIFACTS_COUNT",),
    )
    max_file_size_bytes: float | None = setting(
        "defaults.max_file_size_bytes",
        number,
        None,
        "Largest file that an agent's file tools write.",
    )
    max_files: float | None = setting(
        "defaults.max_files", number, None, "How many files an agent's file tools write."
    )


@dataclass(frozen=True, slots=True)
class FixedDefaults:
    max_exec_timeout_ms: float = setting(
        "defaults.max_exec_timeout_ms",
        number,
        3_600_000,
        "Longest deadline that a request may ask for.",
    )
    network_mode: Literal["none", "full"] = setting(
        "defaults.network_mode",
        network_default,
        "none",
        "The network of a request that names none: none, or full (all that policy.network allows).",
        aliases=("STATION_SANDBOX_ALLOW_NETWORK_DEFAULT",),
    )
    readonly_rootfs: bool = setting(
        "defaults.readonly_rootfs",
        boolean,
        True,
        "Whether the root of a hardened sandbox is read-only; the host image always is.",
    )


@dataclass(frozen=True, slots=True)
class LimitCeilings:
    """The most that a request may ask for; None: no maximum."""

    cpu_limit: float | None = setting(
        "policy.max.cpu_limit", number, None, "Most processors that a request may ask for."
    )
    mem_limit_mb: float | None = setting(
        "policy.max.mem_limit_mb", number, None, "Most memory that a request may ask for."
    )
    pids_limit: float | None = setting(
        "policy.max.pids_limit", number, None, "Most processes and threads."
    )
    workspace_mb: float | None = setting(
        "policy.max.workspace_mb", number, None, "Largest workspace."
    )
    tmp_mb: float | None = setting("policy.max.tmp_mb", number, None, "Largest /tmp.")
    max_open_files: float | None = setting(
        "policy.max.max_open_files", number, None, "Most open files of one process."
    )
    max_stdout_bytes: float | None = setting(
        "policy.max.max_stdout_bytes", number, None, "Most stdout that is kept."
    )
    max_stderr_bytes: float | None = setting(
        "policy.max.max_stderr_bytes", number, None, "Most stderr that is kept."
    )
    max_artifact_bytes: float | None = setting(
        "policy.max.max_artifact_bytes", number, None, "Largest artifact."
    )
    max_artifacts_count: float | None = setting(
        "policy.max.max_artifacts_count", number, None, "Most artifacts of a one-shot."
    )
    max_file_size_bytes: float | None = setting(
        "policy.max.max_file_size_bytes", number, None, "Largest file of an agent's tools."
    )
    max_files: float | None = setting(
        "policy.max.max_files", number, None, "Most files of an agent's tools."
    )

    def checked(self) -> dict[str, int | float]:
        """Return the maxima that are set; InvalidConfiguration for one that no limit can have."""
        ceilings = _set_fields(self)
        for name, value in ceilings.items():
            try:
                parse_limits({name: value}, Limits())
            except InvalidRequest as exc:
                setting_name = f"policy.max.{name}"
                message = exc.message.replace(name, setting_name, 1)
                raise InvalidConfiguration(message, hint=exc.hint, setting=setting_name) from exc
        return ceilings


@dataclass(frozen=True, slots=True)
class WorkspaceSettings:
    default_mb: float | None = setting(
        "workspace.default_mb", number, None, "Size of a new named workspace."
    )
    max_mb: float = setting(
        "workspace.max_mb", number, _MAX_WORKSPACE_MB, "Largest size of a named workspace."
    )
    max_count: float = setting(
        "workspace.max_count", number, 1000, "How many named workspaces there may be."
    )

    def rules(self, usual_mb: float) -> WorkspaceRules:
        """`usual_mb`: the size of other workspaces, for a default that is not set."""
        max_mb = _bounded("workspace.max_mb", self.max_mb, _MAX_WORKSPACE_MB)
        default_mb = usual_mb if self.default_mb is None else self.default_mb
        default_mb = _bounded("workspace.default_mb", default_mb, _MAX_WORKSPACE_MB)
        max_count = _bounded("workspace.max_count", self.max_count, _MAX_WORKSPACES)
        if default_mb > max_mb:
            raise InvalidConfiguration(
                f"workspace.default_mb ({default_mb:g}) is more than workspace.max_mb ({max_mb:g})",
                hint="lower the one or raise the other",
                setting="workspace.default_mb",
            )
        return WorkspaceRules(int(default_mb * MIB), int(max_mb * MIB), int(max_count))


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    max_count: float = setting(
        "snapshots.max_count", number, 100, "How many snapshots a tenant may have."
    )
    max_total_mb: float = setting(
        "snapshots.max_total_mb",
        number,
        100 * 1024,
        "What all snapshots may take together; each counts in full.",
    )
    expire_after_s: float | None = setting(
        "snapshots.expire_after",
        seconds,
        None,
        "After which time a snapshot is removed; without it, never.",
    )

    def rules(self) -> SnapshotRules:
        max_count = _bounded("snapshots.max_count", self.max_count, _MAX_WORKSPACES, low=0)
        max_mb = _bounded("snapshots.max_total_mb", self.max_total_mb, 10**9, low=0)
        return SnapshotRules(int(max_count), int(max_mb * MIB), self.expire_after_s)


@dataclass(frozen=True, slots=True)
class DiskSettings:
    reserve: Literal["all", "named", "none"] = setting(
        "disk.reserve",
        choice("all", "named", "none"),
        "all",
        "Which workspaces get all of their space when they are made: all, named or none.",
    )
    min_free_mb: float = setting(
        "disk.min_free_mb",
        number,
        DiskRules().min_free_bytes // MIB,
        "Free space to keep on the data directory's disk; workspaces that need it are refused.",
    )
    flush: bool = setting(
        "disk.flush",
        boolean,
        True,
        "Whether a change by a file method is on disk before it is acknowledged.",
    )

    def rules(self) -> DiskRules:
        min_free_mb = _bounded("disk.min_free_mb", self.min_free_mb, _MAX_WORKSPACE_MB, low=0)
        return DiskRules(self.reserve, int(min_free_mb * MIB), self.flush)


def default_limits(
    defaults: LimitDefaults, fixed: FixedDefaults, ceilings: dict[str, int | float]
) -> Limits:
    """Return the limits of a request that names none.

    A built-in default over a maximum is lowered to it; an explicit one is refused.
    """
    explicit = _set_fields(defaults)
    requested = dict(explicit)
    for name, usual in public_limits(Limits()).items():
        if name in ceilings:
            requested[name] = min(requested.get(name, usual), ceilings[name])
        if name in explicit and requested[name] < explicit[name]:
            raise InvalidConfiguration(
                f"defaults.{name} ({explicit[name]:g}) is more than "
                f"policy.max.{name} ({ceilings[name]:g})",
                hint="lower the one or raise the other",
                setting=f"defaults.{name}",
            )
    try:
        # The longest deadline first: other limits are checked against it.
        longest = {"max_exec_timeout_seconds": fixed.max_exec_timeout_ms / 1000}
        return parse_limits(requested, parse_limits(longest, Limits(max_exec_timeout_s=86_400.0)))
    except InvalidRequest as exc:
        raise InvalidConfiguration(
            f"defaults: {exc.message}", hint=exc.hint, setting="defaults"
        ) from exc


def _set_fields(section: LimitDefaults | LimitCeilings) -> dict[str, int | float]:
    return {name: value for name, value in asdict(section).items() if value is not None}


def _bounded(name: str, value: float, high: float, *, low: float = 1) -> float:
    try:
        return numbers.number(name, value, low=low, high=high)
    except InvalidRequest as exc:
        raise InvalidConfiguration(exc.message, hint=exc.hint, setting=name) from exc
