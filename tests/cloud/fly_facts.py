"""What Fly's Machines API accepts and answers, read from fly_api.json: requests and answers of a
test are compared with it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FACTS: dict[str, Any] = json.loads((Path(__file__).parent / "fly_api.json").read_text())
_KINDS: dict[str, type] = {"string": str, "boolean": bool, "integer": int}


def operation(method: str, path: str) -> str | None:
    """Return the name of the operation that a request is for."""
    for name in FACTS["operations"]:
        verb, _, template = name.partition(" ")
        if verb == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
            return str(name)
    return None


def wrong_query(name: str, query: dict[str, str]) -> list[str]:
    known: dict[str, Any] = FACTS["operations"][name].get("query", {})
    found = []
    for key, value in query.items():
        kind = known.get(key)
        if kind is None:
            found.append(f"{name}: unknown parameter {key}")
        elif isinstance(kind, list):
            found += [] if value in kind else [f"{name}: {key}={value}"]
        elif kind == "boolean" and value not in ("true", "false"):
            found.append(f"{name}: {key}={value} is not a boolean")
        elif kind == "integer" and not value.isdigit():
            found.append(f"{name}: {key}={value} is not a number")
    return found


def wrong_body(name: str, body: Any) -> list[str]:
    kind = FACTS["operations"][name].get("body")
    if kind is None:
        return [] if body is None else [f"{name}: takes no body"]
    return _wrong(body, kind, str(kind)) + _wrong_machine(body.get("config") or {})


def wrong_answer(name: str, status: int, body: Any) -> list[str]:
    kinds = FACTS["operations"][name]["statuses"]
    # Every operation can fail at the server.
    kind = kinds.get(str(status), "Error" if status >= 500 else None)
    if kind is None:
        return [f"{name}: does not answer with {status}"]
    return _wrong(body, kind, f"{name} {status}")


def _wrong(value: Any, kind: Any, place: str) -> list[str]:
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{place}: not a list"]
        return [one for each in value for one in _wrong(each, kind[0], f"{place}[]")]
    if isinstance(kind, str) and kind in _KINDS:
        fits = isinstance(value, _KINDS[kind]) and (kind == "boolean" or value is not True)
        return [] if fits else [f"{place}: not a {kind}"]
    if isinstance(kind, str) and kind in FACTS["enums"]:
        return [] if value in FACTS["enums"][kind] else [f"{place}: {value!r} is not known"]
    fields = FACTS["schemas"][kind] if isinstance(kind, str) else kind
    if not isinstance(value, dict):
        return [f"{place}: not an object"]
    required = FACTS["required"].get(kind, []) if isinstance(kind, str) else []
    found = [f"{place}.{one}: missing" for one in required if one not in value]
    for key, inner in value.items():
        expected = fields.get(key, fields.get("*"))
        if expected is None:
            found.append(f"{place}.{key}: not a field")
        else:
            found += _wrong(inner, expected, f"{place}.{key}")
    return found


def _wrong_machine(config: dict[str, Any]) -> list[str]:
    found = []
    for file in config.get("files") or ():
        if not str(file.get("guest_path", "")).startswith("/"):
            found.append("files: guest_path must be absolute")
        if ("raw_value" in file) == ("secret_name" in file):
            found.append("files: one of raw_value and secret_name must be set")
    guest = config.get("guest") or {}
    sizes = FACTS["sizes"].get(guest.get("cpu_kind", "shared"))
    cpus, memory = guest.get("cpus", 1), guest.get("memory_mb", 256)
    if sizes is None or cpus not in sizes["cpus"]:
        return [*found, f"guest: no size has {cpus} processors of {guest.get('cpu_kind')}"]
    least, most = sizes["memory_mb_per_cpu"]
    fits = least * cpus <= memory <= most * cpus
    if not fits or memory % FACTS["sizes"]["memory_mb_multiple"]:
        found.append(f"guest: {memory} MB do not fit to {cpus} processors")
    return found
