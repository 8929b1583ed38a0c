"""Durations and sizes as people write them: `90`, `30m`, `1h30m`, `30d`; `500`, `512M`, `2G`."""

from __future__ import annotations

from typing import Final

from sandkasten.model import durations, sizes
from sandkasten.model.spelling import did_you_mean, shown
from sandkasten_server.cli.exit_status import UsageError

_MB: Final = 1 << 20


def seconds(text: str) -> float:
    """Parse `90`, `30m`, `1h30m` or `30d`; the default unit is seconds."""
    duration = durations.seconds(text.strip().lower())
    if duration is None:
        raise UsageError(
            f"{text[:40]!r} is not a duration", hint="write 90 (seconds), 30m, 1h30m or 30d"
        )
    return duration


def megabytes(text: str) -> float:
    """Parse `500`, `500M` or `2G`; the default unit is megabytes."""
    return _bytes(text, _MB, "write 500 (megabytes), 500M or 2G") / _MB


def limit(name: str, text: str) -> float:
    """Parse the value of a limit: a number, or with a unit that fits the limit's name."""
    from sandkasten.model.sandbox.limit_names import LIMIT_NAMES
    from sandkasten.model.sandbox.network_limits import LIMIT_NAMES as NETWORK_LIMITS

    if name in NETWORK_LIMITS and name not in LIMIT_NAMES:
        raise UsageError(
            f"{name} is a limit of the network", hint=f"--network-limit {name}={text[:40]}"
        )
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        pass
    if name.endswith("_mb"):
        return megabytes(text)
    if name.endswith("_bytes"):
        return int(_bytes(text, 1, "write 200000 (bytes), 500K or 2M"))
    if name.endswith("_seconds"):
        return seconds(text)
    if name.endswith("_ms"):
        return seconds(text) * 1000
    if name not in LIMIT_NAMES:
        raise UsageError(
            f"{shown(name)} is not a valid limit", hint=did_you_mean(name, LIMIT_NAMES)
        )
    raise UsageError(
        f"--limit {name} must be a number, got {text[:80]!r}", hint=f"--limit {name}=256"
    )


def network_limit(name: str, text: str) -> int:
    """Parse the value of a limit of the network: a number, or with a unit that fits its name."""
    from sandkasten.model.sandbox.network_limits import LIMIT_EXAMPLES, LIMIT_NAMES, read_limit

    if name not in LIMIT_NAMES:
        raise UsageError(
            f"{shown(name)} is not a valid limit of a network", hint=did_you_mean(name, LIMIT_NAMES)
        )
    parsed = read_limit(name, text)
    if parsed is None:
        raise UsageError(
            f"--network-limit {name} must be a number, got {text[:80]!r}",
            hint=f"write {LIMIT_EXAMPLES[name]}",
        )
    return parsed


def _bytes(text: str, default: int, hint: str) -> float:
    size = sizes.in_bytes(text, default)
    if size is None:
        raise UsageError(f"{text[:40]!r} is not a size", hint=hint)
    return size
