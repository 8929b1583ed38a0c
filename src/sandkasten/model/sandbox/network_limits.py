"""How much of the network one sandbox may use. Pure.

The operator's limits are the defaults and the maxima of a request's `network.limits`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, PolicyDenied
from sandkasten.model.numbers import whole
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT_RULE: Final = "limit:"
"""How the rule of a refusal begins that a limit caused."""
MAX_CONNECTIONS: Final = 1024
"""More would exceed the descriptors of the process that relays them."""
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


LIMIT_NAMES: Final = tuple(one.name for one in fields(NetworkLimits))
_HIGHEST: Final = {
    "connections": MAX_CONNECTIONS,
    "names_per_minute": _MAX_NAMES,
    "idle_seconds": _MAX_IDLE,
}


def asked_limits(value: object) -> Mapping[str, int]:
    """Return the limits that a request names; InvalidRequest says what is wrong."""
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
        name: whole(f"network.limits.{name}", found, low=1, high=_HIGHEST.get(name, _MOST))
        for name, found in value.items()
        if found is not None
    }


def within(asked: Mapping[str, int], most: NetworkLimits) -> NetworkLimits:
    """Return the limits of a sandbox; PolicyDenied names one above the operator's."""
    for name, value in asked.items():
        highest = getattr(most, name)
        if highest is not None and value > highest:
            raise PolicyDenied(
                f"network.limits.{name} may be at most {highest} here, got {value}",
                hint="ask for less, or ask the operator to raise the setting of the same name",
                field=f"network.limits.{name}",
                rule=f"network.limits.{name}",
            )
    return replace(most, **asked)


def lowered(asked: Mapping[str, int], most: NetworkLimits) -> dict[str, int]:
    """Return the limits of a live sandbox under settings that may have become stricter."""
    return {
        name: value if getattr(most, name) is None else min(value, getattr(most, name))
        for name, value in asked.items()
    }
