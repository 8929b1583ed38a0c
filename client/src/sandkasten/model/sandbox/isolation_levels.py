"""Isolation levels, and the least strength of each. Pure."""

from __future__ import annotations

from typing import Final

ISOLATIONS: Final = ("standard", "gvisor", "strongest")
"""What a request may ask for."""
MINIMA: Final = ("standard", "gvisor")
"""What an operator may demand."""
_WEAKEST: Final = {"standard": 1, "gvisor": 2}


def weakest_of(minimum: str) -> int:
    """Return the least `Capabilities.strength` that satisfies a level."""
    return _WEAKEST[minimum]
