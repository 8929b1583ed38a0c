"""Files, as JSON and as headers, both ways. Pure.

A name inside a sandbox is whatever bytes somebody chose; what is no UTF-8 travels as base64 in a
field beside the text and is a `str` with surrogate escapes here.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, get_args

from sandkasten.client.http.json_values import (
    Json,
    choice,
    count,
    decoded,
    encoded,
    record,
    records,
    text,
    yes,
)
from sandkasten.errors import InvalidRequest
from sandkasten.model.files.file_entries import Change, FileEntry, FileType, Listing, TarSummary

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONTENT_RANGE = re.compile(r"bytes (?:[0-9]+-[0-9]+|\*)/([0-9]{1,19})\Z")
_KINDS = ("created", "modified", "deleted", "moved")


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


def name_of(found: Json, field: str) -> str:
    exact = found.get(f"{field}_b64")
    return text(found, field) if exact is None else os.fsdecode(decoded(exact, f"{field}_b64"))


def entry_of(value: object) -> FileEntry:
    found = record(value, "file")
    pointed = found.get("target") is not None or found.get("target_b64") is not None
    return FileEntry(
        path=name_of(found, "path"),
        name=name_of(found, "name"),
        type=choice(found.get("type"), get_args(FileType), "type"),
        size=count(found, "size"),
        mode=count(found, "mode"),
        mtime_unix=count(found, "mtime_unix"),
        uid=count(found, "uid", 0),
        gid=count(found, "gid", 0),
        target=name_of(found, "target") if pointed else None,
    )


def listing_of(value: object) -> Listing:
    found = record(value, "listing")
    entries = tuple(entry_of(one) for one in records(found.get("entries"), "entries"))
    cursor = found.get("next_cursor")
    return Listing(entries, None if cursor is None else text(found, "next_cursor"))


def change_of(value: object) -> Change:
    found = record(value, "change")
    kind = choice(found.get("kind"), _KINDS, "kind")
    return Change(kind, name_of(found, "path"), yes(found, "is_dir"))  # type: ignore[arg-type]


def summary_of(value: object) -> TarSummary:
    found = record(value, "upload")
    return TarSummary(count(found, "entries"), count(found, "size_bytes"))


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
