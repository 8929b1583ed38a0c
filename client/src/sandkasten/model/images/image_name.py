"""The syntax of image names. Pure.

A valid name can never be read as an option, a path or a second argument.
"""

from __future__ import annotations

from sandkasten.errors import InvalidImage
from sandkasten.model import lazy_pattern
from sandkasten.model.field_patterns import IMAGE_NAME, form
from sandkasten.model.spelling import shown

MAX_NAME = 255
_NAME = form(IMAGE_NAME)
_ID = lazy_pattern.compile(r"(?:sha256:)?[0-9a-f]{8,64}\Z")


def checked_name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not _NAME.match(name):
        raise InvalidImage(
            f"{shown(str(name))} is not a valid image name",
            hint="a name is [registry/]repository[:tag][@sha256:digest], in lower case",
        )
    return name


def is_id(name: str) -> bool:
    """Return whether the name is an image id or a prefix of one."""
    return _ID.match(name) is not None
