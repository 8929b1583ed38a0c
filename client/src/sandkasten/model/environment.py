"""Environment variables and labels of a request, checked before use.

A name that a shell or execve could misread is refused; values may hold anything except NUL, which
execve cannot carry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import InvalidRequest, PayloadTooLarge
from sandkasten.model.field_patterns import ENV_NAME, LABEL_NAME, form
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = form(ENV_NAME)
_LABEL = form(LABEL_NAME)

# The kernel refuses one string over 128 KiB (MAX_ARG_STRLEN), name and '=' included.
MAX_VALUE_BYTES = 128 * 1024 - 512
MAX_TOTAL_BYTES = 1024 * 1024
MAX_LABELS = 64
MAX_LABEL_VALUE = 256


def text_bytes(name: str, value: object) -> bytes:
    """Return a string as the kernel gets it; NUL and unpaired surrogates are refused."""
    if not isinstance(value, str):
        raise InvalidRequest(
            f"{name} must be a string, got {type(value).__name__}", hint="give a string", field=name
        )
    if "\0" in value:
        raise InvalidRequest(
            f"{name} contains a NUL character",
            hint="remove it; the kernel ends strings there",
            field=name,
        )
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        raise InvalidRequest(
            f"{name} contains an unpaired surrogate", hint="send valid Unicode", field=name
        ) from exc


def checked_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `env`; InvalidRequest names a bad variable."""
    if not env:
        return {}
    total = 0
    for name, value in env.items():
        if not isinstance(name, str) or not _NAME.match(name):
            raise InvalidRequest(
                f"{shown(str(name))} is not a valid name for an environment variable",
                hint="use letters, digits and '_', not starting with a digit",
                field="env",
            )
        size = len(text_bytes(f"environment variable {name}", value))
        total += size + len(name)
        if size > MAX_VALUE_BYTES or total > MAX_TOTAL_BYTES:
            raise PayloadTooLarge(
                f"environment variable {name} is too large ({size} bytes)",
                hint=f"at most {MAX_VALUE_BYTES} bytes each and {MAX_TOTAL_BYTES} together; "
                "write larger data to a file",
                field="env",
            )
    return dict(env)


def checked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise InvalidRequest(
            f"{len(labels)} labels are too many", hint=f"at most {MAX_LABELS}", field="labels"
        )
    for name, value in labels.items():
        if not isinstance(name, str) or not _LABEL.match(name):
            raise InvalidRequest(
                f"{shown(str(name))} is not a valid label name",
                hint="1 to 63 letters, digits, '.', '_', '/' or '-'; a letter or digit first",
                field="labels",
            )
        if len(text_bytes(f"label {name}", value)) > MAX_LABEL_VALUE:
            raise InvalidRequest(
                f"label {name} is too long", hint=f"at most {MAX_LABEL_VALUE} bytes", field="labels"
            )
    return dict(labels)
