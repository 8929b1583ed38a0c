"""The version of what plugins may rely on, and the form of their names.

docs/guides/extending.md lists the modules that plugins may rely on; `INTERFACE` changes when one of
these changes in a way that plugins notice. Version 1 may still change before the first release.
"""

from __future__ import annotations

from typing import Final

from sandkasten.model import lazy_pattern

INTERFACE: Final = 1
_NAME: Final = lazy_pattern.compile("[a-z][a-z0-9-]{0,31}")


def invalid_name(name: object) -> str | None:
    """Return why a plugin cannot have this name, as the rest of a sentence; None if it can."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return None
    return (
        f"has the name {name!r}, which is not a valid name: lower-case letters, digits "
        "and hyphens, at most 32"
    )
