"""Size limits for what a transcript records of a run. Pure.

A tool's answer may contain megabytes; truncated values show where they were cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.errors import SandkastenError

MAX_TEXT: Final = 16_384
MAX_ITEMS: Final = 200
MAX_DEPTH: Final = 12


def bounded(data: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): _cut(value, 1) for name, value in list(data.items())[:MAX_ITEMS]}


def _cut(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        rest = len(value) - MAX_TEXT
        return value if rest <= 0 else f"{value[:MAX_TEXT]}… ({rest} more characters)"
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth >= MAX_DEPTH:
        return "…"
    if hasattr(value, "items"):
        return {str(k): _cut(v, depth + 1) for k, v in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, list | tuple):
        items = [_cut(item, depth + 1) for item in value[:MAX_ITEMS]]
        return items if len(value) <= MAX_ITEMS else [*items, f"… ({len(value) - MAX_ITEMS} more)"]
    return str(value)[:MAX_TEXT]


def error_fields(error: SandkastenError) -> dict[str, Any]:
    return {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "details": dict(error.details),
    }
