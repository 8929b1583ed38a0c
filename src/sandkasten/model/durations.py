"""Durations as people write them. Pure."""

from __future__ import annotations

import re
from typing import Final

DURATION: Final = r"([0-9]{1,9}(?:\.[0-9]{1,6})?) *(ms|s|sec|m|min|h)?"
# A number of seconds; in text, nine digits of any unit.
MAX_NUMBER: Final = 999_999_999
_DURATION: Final = re.compile(DURATION)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds(value: object) -> float | None:
    """Parse 5, 0.5, "5s", "500ms", "2m" or "1h" as seconds; return None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if 0 <= value <= MAX_NUMBER else None
    if not isinstance(value, str):
        return None
    found = _DURATION.fullmatch(value)
    return float(found[1]) * _SECONDS[found[2] or "s"] if found else None
