"""Files as JSON and as headers. Pure.

A file name inside a sandbox is arbitrary bytes; a name that is not UTF-8 is sent as base64 in a
second field, and is a `str` with surrogate escapes here.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from sandkasten.client.http.json_values import count, encoded, record, value_of
from sandkasten.errors import InvalidRequest
from sandkasten.model.files.file_entries import Change, FileEntry, Listing, TarSummary

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONTENT_RANGE = re.compile(r"bytes (?:[0-9]+-[0-9]+|\*)/([0-9]{1,19})\Z")


def name_fields(field: str, name: str) -> dict[str, str]:
    """Return the fields of a name to send; InvalidRequest if it is not a valid name."""
    if not isinstance(name, str):
        raise InvalidRequest(
            f"{field} must be a str, got {type(name).__name__}", hint="pass a string", field=field
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        try:
            return {f"{field}_b64": encoded(os.fsencode(name))}
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"{field} has characters that no file name can have",
                hint="remove the unpaired surrogates",
                field=field,
            ) from None
    return {field: name}


def entry_of(value: object) -> FileEntry:
    return value_of(FileEntry, value, "file")


def listing_of(value: object) -> Listing:
    return value_of(Listing, value, "listing")


def change_of(value: object) -> Change:
    return value_of(Change, value, "change")


def summary_of(value: object) -> TarSummary:
    return value_of(TarSummary, value, "upload")


def removed_of(value: object) -> int:
    return count(record(value, "deletion"), "removed")


def range_of(offset: int, most: int | None) -> dict[str, str]:
    """Return the header that requests a range; none for the whole file."""
    if not offset and most is None:
        return {}
    end = "" if most is None else str(offset + most - 1)
    return {"Range": f"bytes={offset}-{end}"}


def size_of(headers: Mapping[str, str], length: int) -> int:
    """Return the true size of a file of which a range was sent; `length` if it was all."""
    found = _CONTENT_RANGE.match(headers.get("Content-Range", ""))
    return int(found[1]) if found else length
