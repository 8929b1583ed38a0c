"""Parse a JSON body with a bound on the number of its values, and without duplicate keys. Pure.

A body of 16 MB can hold eight million numbers: seconds of parsing, and a hundred times its size in
memory. They are counted before any of them is made. All steps but the parser's own one are short,
so that a thread that parses a large body never keeps the event loop waiting.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic_core import from_json

from sandkasten.errors import InvalidRequest, PayloadTooLarge
from sandkasten.model.json_structure import Structure
from sandkasten.model.spelling import shown

MAX_VALUES: Final = 100_000
"""Numbers, strings, lists and objects of one body: a table of 10,000 rows with ten columns."""


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return the object; InvalidRequest if it is not one, PayloadTooLarge if it has too much."""
    structure = Structure.at_most(raw)
    if structure.values > MAX_VALUES:
        structure = _counted(raw)
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as exc:
        raise InvalidRequest(
            f"the body is not valid JSON: {str(exc)[:200]}", hint="send one JSON object in UTF-8"
        ) from exc
    if not isinstance(value, dict):
        raise InvalidRequest("the body is not a JSON object", hint="send one JSON object")
    kept = _keys(value)
    if structure.keys != kept and _counted(raw).keys != kept:
        raise _duplicate(raw)
    return value


def _counted(raw: bytes) -> Structure:
    """Count exactly; PayloadTooLarge above MAX_VALUES."""
    found = Structure.counted(raw, MAX_VALUES)
    if found is None:
        raise PayloadTooLarge(
            f"the body has more than {MAX_VALUES} values",
            hint="write the data to a file, and send the file to fs/upload",
            limit=MAX_VALUES,
        )
    return found


def _keys(value: dict[str, Any]) -> int:
    count = 0
    left: list[Any] = [value]
    while left:
        one = left.pop()
        if type(one) is dict:
            count += len(one)
            one = one.values()
        left += [inner for inner in one if type(inner) is dict or type(inner) is list]
    return count


def _duplicate(raw: bytes) -> InvalidRequest:
    twice: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        twice.extend(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]

    json.loads(raw, object_pairs_hook=look)
    name = twice[0] if twice else ""
    return InvalidRequest(
        f"the body has the key {shown(name)} twice",
        hint="give it once: parsers disagree on which one counts",
        field=name[:100],
    )
