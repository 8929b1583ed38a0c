"""Building blocks for schemas of tools. Values only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
# The engine's limit for the code of one run.
CODE_BYTES: Final = 10_000_000


def text(told: str, most: int | None = None, *, least: int = 1) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "description": told}
    if least:
        schema["minLength"] = least
    if most is not None:
        schema["maxLength"] = most
    return schema


def number(told: str, low: float, high: float) -> dict[str, Any]:
    return {"type": "number", "description": told, "minimum": low, "maximum": high}


def flag(told: str, default: bool) -> dict[str, Any]:
    return {"type": "boolean", "description": told, "default": default}


def words(told: str, most: int) -> dict[str, Any]:
    return {"type": "array", "description": told, "items": {"type": "string"}, "maxItems": most}


def choice(names: Sequence[str]) -> dict[str, Any]:
    """Require exactly one of these properties, without a combinator at the top level."""
    return {
        "dependentSchemas": {
            name: {"properties": {other: False for other in names if other != name}}
            for name in names
        },
        # Without any of them no value is valid.
        "if": {"properties": dict.fromkeys(names, False)},
        "then": False,
    }
