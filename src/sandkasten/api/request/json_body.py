"""Parse a JSON body with a bound on the number of its values, and without duplicate keys. Pure.

A body of 16 MB can hold eight million numbers: seconds of parsing, and a hundred times its size in
memory. They are counted before any of them is made. All steps but the parser's own one are short,
so that a thread that parses a large body never keeps the event loop waiting.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json

from sandkasten.errors import InvalidRequest, PayloadTooLarge
from sandkasten.model.spelling import shown

MAX_VALUES: Final = 100_000
"""Numbers, strings, lists and objects of one body: a table of 10,000 rows with ten columns."""
# A slice in which every byte is a quote takes about a millisecond.
_SLICE: Final = 32 * 1024


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return the object; InvalidRequest if it is not one, PayloadTooLarge if it has too much."""
    structure = _Structure.at_most(raw)
    if structure.values > MAX_VALUES:
        structure = _Structure.counted(raw)
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as exc:
        raise InvalidRequest(
            f"the body is not valid JSON: {str(exc)[:200]}", hint="send one JSON object in UTF-8"
        ) from exc
    if not isinstance(value, dict):
        raise InvalidRequest("the body is not a JSON object", hint="send one JSON object")
    kept = _keys(value)
    if structure.keys != kept and _Structure.counted(raw).keys != kept:
        raise _duplicate(raw)
    return value


@dataclass(frozen=True, slots=True)
class _Structure:
    values: int
    keys: int

    @classmethod
    def at_most(cls, raw: bytes) -> _Structure:
        """Count as if no string contained punctuation, in a fraction of the time."""
        opened = raw.count(b"[") + raw.count(b"{")
        return cls(raw.count(b",") + opened + 1, raw.count(b":"))

    @classmethod
    def counted(cls, raw: bytes) -> _Structure:
        """Count exactly, what is within strings left out; PayloadTooLarge above MAX_VALUES."""
        at, within, values, keys = 0, False, 1, 0
        while at < len(raw):
            end = _slice_end(raw, at)
            plain = raw[at:end].replace(b"\\\\", b"").replace(b'\\"', b"")
            parts = plain.split(b'"')
            outside = b"".join(parts[1::2] if within else parts[::2])
            within ^= len(parts) % 2 == 0
            found = cls.at_most(outside)
            values, keys, at = values + found.values - 1, keys + found.keys, end
            if values > MAX_VALUES:
                raise PayloadTooLarge(
                    f"the body has more than {MAX_VALUES} values",
                    hint="write the data to a file, and send the file to fs/upload",
                    limit=MAX_VALUES,
                )
        return cls(values, keys)


def _slice_end(raw: bytes, at: int) -> int:
    """Return where a slice ends that starts at `at` and cuts no escape sequence in two."""
    end = min(at + _SLICE, len(raw))
    backslashes = len(raw[at:end]) - len(raw[at:end].rstrip(b"\\"))
    return end + backslashes % 2


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
