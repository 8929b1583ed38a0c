"""Keys of the file store and the rules of the store. Pure.

`f_<id>` is generated; callers choose other names, with slashes if they like
(`runs/<run>/output/<name>`). A key is never a path on the host: content is stored by hash.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from sandkasten.errors import FileNotFound, InvalidRequest
from sandkasten.model import lazy_pattern
from sandkasten.model.field_patterns import CONTENT_TYPE, FILE_KEY, form
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_KEY_BYTES: Final = 512
# Content type of a file without a declared one.
UNKNOWN_TYPE: Final = "application/octet-stream"
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Older programs write the keys we give as `files/f_…`.
_OLD = lazy_pattern.compile(r"files/(f_[0-9A-Za-z]{8,64})\Z")
_KEY = form(FILE_KEY)
_TYPE = form(CONTENT_TYPE)
_MAX_METADATA: Final = 32
_MAX_METADATA_BYTES: Final = 8192


def new_file_key() -> str:
    """Return a new key: 48 bits of time and 80 random bits in Crockford base32, sorted by age."""
    figure = int(time.time() * 1000) << 80 | int.from_bytes(os.urandom(10), "big")
    letters = []
    for _ in range(26):
        figure, rest = divmod(figure, 32)
        letters.append(_ALPHABET[rest])
    return "f_" + "".join(reversed(letters))


def file_key(text: str) -> str:
    """Return the key as it is stored; InvalidRequest if it is not a valid key."""
    old = _OLD.match(text)
    if old is not None:
        return old[1]
    if not text or len(text.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise _bad(text, f"1 to {MAX_KEY_BYTES} bytes")
    if not _KEY.match(text):
        raise _bad(
            text,
            "names with single slashes between them, none of them '.' or '..'; no backslashes and "
            "no control characters",
        )
    return text


def known_file_key(text: str) -> str:
    """Return a key for reading; an invalid key answers like an unknown one."""
    try:
        return file_key(text)
    except InvalidRequest as exc:
        raise no_such_file(text) from exc


def no_such_file(key: str) -> FileNotFound:
    return FileNotFound(
        f"no stored file has the key {shown(key)}", hint="list them with files ls", path=key
    )


def checked_content_type(text: str) -> str:
    if not _TYPE.match(text):
        raise InvalidRequest(
            f"{shown(text)} is not a valid content type",
            hint="use a type such as text/plain",
            field="content_type",
        )
    return text


def checked_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    size = sum(
        len(k.encode("utf-8", "replace")) + len(v.encode("utf-8", "replace"))
        for k, v in metadata.items()
    )
    if len(metadata) > _MAX_METADATA or size > _MAX_METADATA_BYTES:
        raise InvalidRequest(
            "metadata is too large",
            hint=f"at most {_MAX_METADATA} names and {_MAX_METADATA_BYTES} bytes",
            field="metadata",
        )
    return dict(metadata)


def _bad(text: str, rule: str) -> InvalidRequest:
    return InvalidRequest(f"{shown(text)} is not a valid file key", hint=rule, field="key")
