"""Sizes as people write them: `500`, `512M`, `2G`. Pure."""

from __future__ import annotations

import re
from typing import Final

from sandkasten.model import lazy_pattern

_SIZE: Final = lazy_pattern.compile(
    r"(\d{1,12}(?:\.\d{1,6})?|\.\d{1,6})\s*([kmgt]?)(?:i?b)?\Z", re.IGNORECASE
)
_IN_BYTES: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def in_bytes(text: str, default: int = 1) -> float | None:
    """Return the number of bytes; a number without a unit counts `default` bytes. None: invalid."""
    match = _SIZE.match(text)
    return None if match is None else float(match[1]) * _IN_BYTES.get(match[2].lower(), default)
