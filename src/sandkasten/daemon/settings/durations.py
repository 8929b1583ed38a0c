"""Durations and numbers as people write them in settings: `90`, `30m`, `1h30m`, `250ms`."""

from __future__ import annotations

import math
import re

from sandkasten.errors import InvalidConfiguration

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)")


def seconds(name: str, value: object) -> float:
    """Seconds from a number or a text; InvalidConfiguration names the setting."""
    if isinstance(value, bool):
        raise _bad(name, value)
    if isinstance(value, int | float):
        return _positive(name, float(value))
    if not isinstance(value, str) or len(value) > 64:
        raise _bad(name, value)
    text = value.strip().lower()
    try:
        return _positive(name, float(text))
    except ValueError:
        pass
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise _bad(name, value)
    return _positive(name, sum(float(number) * _UNITS[unit] for number, unit in parts))


def _positive(name: str, figure: float) -> float:
    if not math.isfinite(figure) or figure <= 0:
        raise _bad(name, figure)
    return figure


def _bad(name: str, value: object) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{name} is not a duration: {str(value)[:40]!r}",
        hint="write seconds or 90s, 30m, 4h, 1h30m",
        setting=name,
    )
