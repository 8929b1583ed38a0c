"""Limits of the network of one sandbox. Pure.

The operator's limits are the defaults and the maxima of a request's `network.limits`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, PolicyDenied
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import durations, sizes
from sandkasten.model.numbers import whole
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT_RULE: Final = "limit:"
"""The prefix of the rule of a refusal, if a limit caused it."""
TENANT_RULE: Final = "limit:tenant_bytes"
"""The rule of a refusal that the quota of the tenant caused."""
MAX_CONNECTIONS: Final = 1024
"""More would exceed the descriptors of the process that relays them."""
MAX_USED_SECRETS: Final = 16
"""Secrets that one sandbox uses."""
_MOST: Final = 1 << 60
_MAX_NAMES: Final = 1_000_000
_MAX_IDLE: Final = 7 * 86_400


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """Limits of one sandbox; None is no limit."""

    connections: int = 256
    """Connections at once."""
    bytes_in: int | None = None
    """Bytes received in total."""
    bytes_out: int | None = None
    """Bytes sent in total."""
    bandwidth_bps: int | None = None
    """Bits per second, each way."""
    names_per_minute: int = 600
    """Lookups of names."""
    idle_seconds: int = 900
    """A connection without a byte for this long is closed."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Byte counts of a sandbox at which its tenant's quota is used up; None: no quota."""

    bytes_in: int | None = None
    bytes_out: int | None = None


LIMIT_NAMES: Final = tuple(field.name for field in fields(NetworkLimits))
_HIGHEST: Final = {
    "connections": MAX_CONNECTIONS,
    "names_per_minute": _MAX_NAMES,
    "idle_seconds": _MAX_IDLE,
}
LIMIT_SCHEMAS: Final = {
    name: {"type": ["integer", "null"], "minimum": 1, "maximum": _HIGHEST.get(name, _MOST)}
    for name in LIMIT_NAMES
}
"""The JSON Schema of each limit in a request; null is like leaving it out."""


LIMIT_EXAMPLES: Final = {
    "connections": "16",
    "bytes_in": "500000 or 500M",
    "bytes_out": "500000 or 500M",
    "bandwidth_bps": "8000000 or 8M",
    "names_per_minute": "60",
    "idle_seconds": "90 or 15m",
}
_LONGEST: Final = 24
_DECIMAL: Final = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


def read_limit(name: str, text: str) -> int | None:
    """Return a limit that a person wrote, perhaps with a unit; None if it is not valid.

    Bytes count in powers of 1024, bits per second in powers of 1000.
    """
    text = text.strip().lower()
    if len(text) > _LONGEST or not text.isascii():
        return None
    if text.isdecimal():
        return int(text)
    limit: float | None = None
    if name.startswith("bytes_"):
        limit = sizes.in_bytes(text)
    elif name == "idle_seconds":
        limit = durations.seconds(text)
    elif name == "bandwidth_bps" and text[-1:] in _DECIMAL and text[:-1].isdecimal():
        limit = int(text[:-1]) * _DECIMAL[text[-1]]
    return None if limit is None else int(limit)


def limit_hint(rule: str) -> str:
    """Return the hint for a refusal that a limit caused."""
    if rule == TENANT_RULE:
        return (
            "the sandboxes of the tenant have used up their bytes of this day (UTC); the operator "
            "sets the quota (max_network_bytes_per_day)"
        )
    return "the creator of the sandbox can raise it (network.limits), up to the operator's limit"


def requested_limits(value: object) -> Mapping[str, int]:
    """Return the limits that a request names; InvalidRequest names what is wrong."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(
            "network.limits must be an object",
            hint="write {connections: 16, bytes_in: 100000000}",
            field="network.limits",
        )
    for name in value:
        if name not in LIMIT_NAMES:
            raise InvalidRequest(
                f"network.limits has no field {shown(str(name))}",
                hint=did_you_mean(str(name), LIMIT_NAMES),
                field="network.limits",
            )
    return {
        name: whole(f"network.limits.{name}", limit, low=1, high=_HIGHEST.get(name, _MOST))
        for name, limit in value.items()
        if limit is not None
    }


def within(requested: Mapping[str, int], most: NetworkLimits) -> NetworkLimits:
    """Return the limits of a sandbox; PolicyDenied names one above the operator's."""
    for name, value in requested.items():
        highest = getattr(most, name)
        if highest is not None and value > highest:
            raise PolicyDenied(
                f"network.limits.{name} may be at most {highest} here, got {value}",
                hint="request less, or ask the operator to raise the setting with the same name",
                field=f"network.limits.{name}",
                rule=f"network.limits.{name}",
            )
    return replace(most, **requested)


def lowered(requested: Mapping[str, int], most: NetworkLimits) -> dict[str, int]:
    """Return the limits of a live sandbox under settings that may have become stricter."""
    return {
        name: value if getattr(most, name) is None else min(value, getattr(most, name))
        for name, value in requested.items()
    }
