"""File names in JSON and in queries, in both directions, without losing a byte.

A file name inside a sandbox is arbitrary bytes. A name that is not UTF-8 is shown as text with
replacement characters, and `<field>_b64` has the bytes. Either form can be sent. Malformed ones are
InvalidRequest.
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import TYPE_CHECKING

from sandkasten.errors import InvalidRequest
from sandkasten.model.json_codec import to_json

if TYPE_CHECKING:
    from sandkasten.model.files.file_entries import FileEntry


def given_name(
    text: str | None, b64: str | None, *, field: str = "path", otherwise: str | None = None
) -> str:
    """Return the name that was sent, with surrogate escapes where it is not UTF-8."""
    if text is not None and b64 is not None:
        raise _refused(f"{field} and {field}_b64 are both given", "send one of them", field)
    if b64 is not None:
        return os.fsdecode(decoded(b64, f"{field}_b64"))
    if text is not None:
        return text
    if otherwise is not None:
        return otherwise
    raise _refused(f"{field} is missing", f"send {field}, or {field}_b64", field)


def name_fields(field: str, name: str) -> dict[str, str]:
    try:
        name.encode()
    except UnicodeEncodeError:
        raw = os.fsencode(name)
        return {
            field: raw.decode(errors="replace"),
            f"{field}_b64": base64.b64encode(raw).decode(),
        }
    return {field: name}


def entry_fields(entry: FileEntry) -> dict[str, object]:
    fields = to_json(entry)
    if entry.target is None:
        del fields["target"]
    return {**fields, "is_dir": entry.is_dir, "size_bytes": entry.size}


def decoded(b64: str, field: str) -> bytes:
    """Decode strict base64, also in the URL-safe alphabet, with or without padding."""
    plain = b64.replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise _refused(
            f"{field} is not valid base64", "encode the bytes as RFC 4648 says", field
        ) from exc


def encoded_cursor(cursor: str | None) -> str | None:
    """Encode a cursor, which is a file name of arbitrary bytes; opaque to clients."""
    if cursor is None:
        return None
    return base64.urlsafe_b64encode(os.fsencode(cursor)).decode().rstrip("=")


def given_cursor(cursor: str | None) -> str | None:
    if cursor == "":
        raise _refused("cursor is empty", "pass next_cursor of the previous page", "cursor")
    return None if cursor is None else os.fsdecode(decoded(cursor, "cursor"))


def _refused(message: str, hint: str, field: str) -> InvalidRequest:
    return InvalidRequest(message, hint=hint, field=field, http_status=422)
