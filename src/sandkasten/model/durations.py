"""Durations as people write them. Pure."""

from __future__ import annotations

import re
from typing import Final

_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(ms|s|sec|m|min|h)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds(value: object) -> float | None:
    """Parse 5, 0.5, "5s", "500ms", "2m" or "1h" as seconds; return None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    found = _DURATION.fullmatch(str(value).strip())
    return float(found[1]) * _SECONDS[found[2] or "s"] if found else None
