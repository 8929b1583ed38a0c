"""Numbers in requests: a boolean, a NaN or a number out of range is refused by name."""

from __future__ import annotations

from sandkasten.errors import InvalidRequest


def number(name: str, value: object, *, low: float, high: float) -> float:
    """Return the value as a float from `low` to `high`; InvalidRequest otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(
            f"{name} must be a number, got {type(value).__name__}",
            hint=f"give a number from {_shown(low)} to {_shown(high)}",
            field=name,
        )
    # NaN fails every comparison; an int that no float can hold is compared exactly.
    if not low <= value <= high:
        raise InvalidRequest(
            f"{name} must be from {_shown(low)} to {_shown(high)}, got {value!r:.40}",
            hint=f"choose a {name} between {_shown(low)} and {_shown(high)}",
            field=name,
        )
    return float(value)


def _shown(bound: float) -> str:
    """Return a bound without an exponent or a needless fraction."""
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"


def whole(name: str, value: object, *, low: int, high: int) -> int:
    """Return the value as an int from `low` to `high`; a fraction is refused, never rounded."""
    checked = number(name, value, low=low, high=high)
    if not checked.is_integer():
        raise InvalidRequest(
            f"{name} must be a whole number, got {value!r:.40}",
            hint="remove the fraction",
            field=name,
        )
    return int(checked)
