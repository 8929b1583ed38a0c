"""Files, as JSON and as headers, both ways. Pure.

A name inside a sandbox is whatever bytes somebody chose; what is no UTF-8 travels as base64 in a
field beside the text and is a `str` with surrogate escapes here.
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
    """A name to send; InvalidRequest for what can be none."""
    if not isinstance(name, str):
        raise InvalidRequest(
            f"{field} is a text, not {type(name).__name__}", hint="name it by a text", field=field
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        try:
            return {f"{field}_b64": encoded(os.fsencode(name))}
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"{field} holds characters that no name can", hint="look at it", field=field
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
    """The header that asks for a part; none for the whole."""
    if not offset and most is None:
        return {}
    end = "" if most is None else str(offset + most - 1)
    return {"Range": f"bytes={offset}-{end}"}


def size_of(headers: Mapping[str, str], length: int) -> int:
    """The true size of the file a part came from; `length` where all of it came."""
    found = _CONTENT_RANGE.match(headers.get("Content-Range", ""))
    return int(found[1]) if found else length
