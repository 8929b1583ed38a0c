"""Numbers as callers send them: a boolean, a NaN or one out of range is refused by name."""

from __future__ import annotations

import math

from sandkasten.errors import InvalidRequest


def number(name: str, value: object, *, low: float, high: float) -> float:
    """The value as a float between `low` and `high`, both included; InvalidRequest otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(
            f"{name} must be a number, not {type(value).__name__}",
            hint=f"give a number from {_shown(low)} to {_shown(high)}",
            field=name,
        )
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequest(
            f"{name} must be from {_shown(low)} to {_shown(high)}, not {value!r:.40}",
            hint=f"choose a {name} between {_shown(low)} and {_shown(high)}",
            field=name,
        )
    return float(value)


def _shown(bound: float) -> str:
    """Whole ones without an exponent, as people write them."""
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"


def whole(name: str, value: object, *, low: int, high: int) -> int:
    """The value as an int between `low` and `high`; a fraction is refused, never rounded."""
    checked = number(name, value, low=low, high=high)
    if not checked.is_integer():
        raise InvalidRequest(
            f"{name} must be a whole number, not {value!r:.40}",
            hint="drop the fraction",
            field=name,
        )
    return int(checked)
