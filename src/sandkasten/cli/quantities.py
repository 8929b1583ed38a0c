"""Durations and sizes as people write them: `90`, `30m`, `1h30m`, `30d`; `500`, `512M`, `2G`."""

from __future__ import annotations

import re
from typing import Final

from sandkasten.cli.state import UsageError
from sandkasten.model import durations
from sandkasten.model.spelling import did_you_mean, shown

_NUMBER: Final = r"(\d{1,12}(?:\.\d{1,6})?|\.\d{1,6})"
_SIZE: Final = re.compile(_NUMBER + r"\s*([kmgt]?)(?:i?b)?\Z", re.IGNORECASE)
_IN_BYTES: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MB: Final = 1 << 20


def seconds(text: str) -> float:
    """Parse `90`, `30m`, `1h30m` or `30d`; the default unit is seconds."""
    found = durations.seconds(text.strip().lower())
    if found is None:
        raise UsageError(
            f"{text[:40]!r} is not a duration", hint="write 90 (seconds), 30m, 1h30m or 30d"
        )
    return found


def megabytes(text: str) -> float:
    """Parse `500`, `500M` or `2G`; the default unit is megabytes."""
    return _bytes(text, _MB, "write 500 (megabytes), 500M or 2G") / _MB


def limit(name: str, text: str) -> float:
    """Parse the value of a limit: a number, or with a unit that fits the limit's name."""
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        pass
    if name.endswith("_mb"):
        return megabytes(text)
    if name.endswith("_bytes") or name.startswith("bytes_"):
        return int(_bytes(text, 1, "write 200000 (bytes), 500K or 2M"))
    if name.endswith("_seconds"):
        return seconds(text)
    if name.endswith("_ms"):
        return seconds(text) * 1000
    from sandkasten.model.sandbox.policy import LIMIT_NAMES

    if name not in LIMIT_NAMES:
        raise UsageError(
            f"{shown(name)} is not a valid limit", hint=did_you_mean(name, LIMIT_NAMES)
        )
    raise UsageError(
        f"--limit {name} must be a number, got {text[:80]!r}", hint=f"--limit {name}=256"
    )


def _bytes(text: str, default: int, hint: str) -> float:
    found = _SIZE.match(text)
    if found is None:
        raise UsageError(f"{text[:40]!r} is not a size", hint=hint)
    return float(found[1]) * _IN_BYTES.get(found[2].lower(), default)
