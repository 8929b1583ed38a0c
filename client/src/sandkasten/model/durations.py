"""Durations as people write them, in requests, files, settings and on the command line. Pure."""

from __future__ import annotations

from typing import Final

from sandkasten.model import lazy_pattern

_SECONDS: Final = {
    "ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0,
}  # fmt: skip
_NUMBER: Final = r"(?:[0-9]{1,9}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})"
_UNIT: Final = "(?:ms|min|m|sec|s|h|d)"
# Only a number, or at most eight parts that each have a unit.
DURATION: Final = rf"{_NUMBER}(?: *{_UNIT}(?: *{_NUMBER} *{_UNIT}){{0,7}})?"
# A number of seconds; in text, nine digits of any unit.
MAX_NUMBER: Final = 999_999_999
_DURATION: Final = lazy_pattern.compile(DURATION)
_PART: Final = lazy_pattern.compile(rf"({_NUMBER}) *({_UNIT}?)")


def seconds(value: object) -> float | None:
    """Parse 5, 0.5, "5s", "500ms", "2m", "1h30m" or "7d" as seconds; return None otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if 0 <= value <= MAX_NUMBER else None
    if not isinstance(value, str) or not _DURATION.fullmatch(value):
        return None
    return sum(float(number) * _SECONDS[unit or "s"] for number, unit in _PART.findall(value))
