"""Signals by number or by name."""

from __future__ import annotations

import signal as signals
from typing import Final

from sandkasten.errors import InvalidRequest
from sandkasten.model.spelling import shown

SIGNAL: Final = (
    f"(?:SIG)?(?:{'|'.join(name.removeprefix('SIG') for name in signals.Signals.__members__)})"
)
"""The form of a name; lower case is understood too."""


def signal_number(signal: object) -> int:
    """Return the number of 15, "15", "TERM" or "SIGTERM"; InvalidRequest otherwise."""
    if isinstance(signal, int) and not isinstance(signal, bool) and 1 <= signal <= 64:
        return signal
    if isinstance(signal, str):
        name = signal.strip().upper()
        if name.isascii() and name.isdigit() and 1 <= int(name) <= 64:
            return int(name)
        member = signals.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
        if member is not None:
            return int(member)
    raise InvalidRequest(
        f"{shown(str(signal))} is not a valid signal",
        hint='15, "TERM" or "SIGTERM"',
        field="signal",
    )
