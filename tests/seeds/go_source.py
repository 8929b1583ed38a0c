"""Read Go source as far as the source documents use it: structs, and literals of maps."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_STRUCT = re.compile(r"type (\w+) struct \{\n(.*?)\n\}", re.S)
_FIELD = re.compile(r'^\s+\w+\s+(\S+)\s+`(json|yaml):"(\w+)(,omitempty)?"`', re.M)
_TYPES = {
    "string": "string",
    "bool": "boolean",
    "int": "integer",
    "int64": "integer",
    "[]string": "array",
    "map[string]string": "object",
}


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: str
    """As JSON Schema names it; `object` for a struct, `array` for a list."""
    required: bool


def structs(source: str) -> dict[str, list[Field]]:
    """Return the tagged fields of each struct."""
    found = {}
    for name, body in _STRUCT.findall(source):
        found[name] = [
            Field(tag, _kind(kind), not optional) for kind, _, tag, optional in _FIELD.findall(body)
        ]
    return found


def _kind(go: str) -> str:
    if go in _TYPES:
        return _TYPES[go]
    return "array" if go.startswith("[]") else "object"


def map_literal(source: str, name: str) -> Any:
    """Return the value of `name := map[string]any{…}`."""
    start = source.index("{", source.index(f"{name} := map[string]any"))
    depth, at = 0, start
    while True:
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        at += 1
        if depth == 0:
            break
    text = source[start:at].replace("map[string]any", "")
    text = re.sub(r"\[\]string\{([^}]*)\}", r"[\1]", text)
    return json.loads(re.sub(r",(\s*[}\]])", r"\1", text))
