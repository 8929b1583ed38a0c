"""Checks of an engine's responses before they are used. Pure.

Raises TypeError or ValueError for an invalid one: an engine may be faulty, or another program.
"""

from __future__ import annotations

import io
import re
import struct
import tarfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONTAINER = re.compile(r"[0-9a-f]{12,64}\Z")
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}\Z")
_IMAGE = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}\Z")
_FRAME = struct.Struct(">BxxxL")
_STDERR = 2


def mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} instead of an object")
    return value


def strings(value: Any) -> Sequence[str]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise TypeError("not a list of strings")
    return value


def labelled(value: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} instead of a list")
    for entry in value:
        labels = mapping(mapping(entry).get("Labels") or {})
        strings(list(labels.values()))
    return value


def container_id(value: Any) -> str:
    """Check a container id; it becomes part of request paths."""
    if not isinstance(value, str) or not _CONTAINER.match(value):
        raise ValueError("a container without an id")
    return value


def image_id(value: Any) -> str:
    if not isinstance(value, str) or not _IMAGE.match(value):
        raise ValueError("an image without an id")
    return value


def volume_name(value: Any) -> str:
    if not isinstance(value, str) or not _VOLUME.match(value):
        raise ValueError("a volume without a name")
    return value


def only_member(packed: bytes) -> bytes | None:
    """Return the file in an archive of one file; None if there is none, or it is incomplete."""
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            member = archive.next()
            content = None
            # A link would be followed within the archive.
            if member is not None and member.isreg():
                content = archive.extractfile(member)
            return None if content is None else content.read()
    except (tarfile.TarError, EOFError, ValueError):
        return None


def unframed(framed: bytes) -> bytes:
    """Return a container's output without the engine's frame headers; unframed output stays."""
    payload = bytearray()
    at = 0
    while at + _FRAME.size <= len(framed):
        source, length = _FRAME.unpack_from(framed, at)
        if source > _STDERR:
            return framed
        payload += framed[at + _FRAME.size : at + _FRAME.size + length]
        at += _FRAME.size + length
    return bytes(payload)
