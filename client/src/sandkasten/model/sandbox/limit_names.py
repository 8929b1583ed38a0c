"""The public names of limits: their units, bounds and ceilings. Pure.

A refusal names the limit, or the operator's setting that a request exceeds.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidRequest, PolicyDenied
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.json_codec import ShapeError
from sandkasten.model.numbers import number, whole
from sandkasten.model.sandbox.gpus import MAX_GPUS
from sandkasten.model.sandbox.limits import MAX_KEPT_BYTES, MIB, Limits
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.model.sandbox.sandbox_options import Number

_TEBI_MB: Final = 1024 * 1024
_NO_CEILING: Final[Mapping[str, Number]] = MappingProxyType({})
# As wide as any operator may set it: what is read was checked where it was created.
_WIDEST: Final = Limits(max_exec_timeout_s=86_400.0)


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
# Deadlines have their own ceiling, `max_exec_timeout_seconds`.
CEILING_NAMES: tuple[str, ...] = tuple(
    name for name, limit in _LIMITS.items() if not limit.alias and "timeout" not in name
)


def limits_schema() -> dict[str, Any]:
    """Return the keywords of a JSON Schema for limits by their public names."""
    properties = {
        name: {
            "type": "integer" if limit.integral else "number",
            "minimum": limit.low,
            "maximum": limit.high,
        }
        for name, limit in _LIMITS.items()
    }
    properties["gpus"] = {"type": "integer", "minimum": 0, "maximum": MAX_GPUS}
    names: dict[str, list[str]] = {}
    for name, limit in _LIMITS.items():
        names.setdefault(limit.field, []).append(name)
    doubles = [{"not": {"required": same}} for same in names.values() if len(same) > 1]
    return {"properties": properties, "additionalProperties": False, "allOf": doubles}


def parse_limits(
    requested: Mapping[str, Number], base: Limits, ceiling: Mapping[str, Number] = _NO_CEILING
) -> Limits:
    """Return `base` with the requested limits; InvalidRequest for unknown or contradictory ones.

    A request may lower `max_exec_timeout_seconds` but never raise it over the operator's. A limit
    over the ceiling is PolicyDenied and names its setting.
    """
    if not requested:
        return base
    values: dict[str, Number] = {}
    said_by: dict[str, str] = {}
    for name, value in requested.items():
        limit = _LIMITS.get(name) if isinstance(name, str) else None
        if limit is None:
            raise InvalidRequest(
                f"{shown(str(name))} is not a valid limit",
                hint=did_you_mean(str(name), _LIMITS),
                field="limits",
            )
        if limit.integral:
            checked: float = whole(name, value, low=int(limit.low), high=int(limit.high))
        else:
            checked = number(name, value, low=limit.low, high=limit.high)
        figure = limit.inward(checked)
        if limit.field in values and values[limit.field] != figure:
            raise InvalidRequest(
                f"limits {said_by[limit.field]} and {name} contradict each other",
                hint="they name the same limit; give one of them",
                field="limits",
            )
        values[limit.field], said_by[limit.field] = figure, name
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
        limit = _LIMITS[name]
        if limit.field in values and values[limit.field] > limit.inward(most):
            public_name = said_by[limit.field]
            raise PolicyDenied(
                f"{public_name} is more than policy.max.{name} ({most:g}) allows",
                hint="ask for less, or have the operator raise that setting",
                rule=f"policy.max.{name}",
                field=f"limits.{public_name}",
            )


def public_limits(limits: Limits, *names: str) -> dict[str, Number]:
    """Return the limits under their public names and in public units; with `names` only these."""
    return {
        name: limit.outward(getattr(limits, limit.field))
        for name, limit in _LIMITS.items()
        if (name in names if names else not limit.alias)
    }


def limit_field(name: str) -> str:
    """Return the field of `Limits` that has a limit of this public name."""
    return _LIMITS[name].field


def read_public_limits(limits: object) -> Limits:
    """Return the limits that `public_limits` gave; unknown names are a newer version's."""
    if not isinstance(limits, dict | None):
        raise ShapeError("limits", "an object")
    readable = {name: value for name, value in (limits or {}).items() if name in LIMIT_NAMES}
    try:
        return parse_limits(readable, _WIDEST) if readable else Limits()
    except InvalidRequest as exc:
        raise ShapeError("limits", "valid limits") from exc
