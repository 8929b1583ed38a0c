"""The syntax of image names. Pure.

A valid name can never be read as an option, a path or a second argument.
"""

from __future__ import annotations

import re

from sandkasten.errors import InvalidImage
from sandkasten.model.spelling import shown

MAX_NAME = 255
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_NAME = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?\Z"
)


def checked_name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not _NAME.match(name):
        raise InvalidImage(
            f"{shown(str(name))} is not a valid image name",
            hint="a name is [registry/]repository[:tag][@sha256:digest], in lower case",
        )
    return name
