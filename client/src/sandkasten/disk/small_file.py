"""Small files read with a bound, so that a file of any size cannot fill the memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

MAX_SMALL_BYTES: Final = 16 * 1024 * 1024


def read_small_file(path: Path | str, max_bytes: int = MAX_SMALL_BYTES) -> bytes | None:
    """Return the content, cut after `max_bytes + 1` bytes; None if there is no such file."""
    try:
        with open(path, "rb") as file:
            return file.read(max_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if it is missing, too large or not an object."""
    data = read_small_file(path)
    if data is None or len(data) > MAX_SMALL_BYTES:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
