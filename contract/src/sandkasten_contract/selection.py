"""Decide by the markers of a test whether it applies to a platform, with a reason if not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    import pytest

MARKERS = (
    "needs_python(reason): the image must have Python",
    "needs_program(*names): the image must have these",
    "only_on(*traits, reason): applies to platforms with one of these traits",
    "not_on(*traits, reason): applies to platforms with none of these traits",
    "aspect(*names): what it is about, for platforms on which a part of the suite runs",
    "own_cell(reason): what it leaves in a sandbox cannot be put back; nothing else uses it again",
)


def why_not(
    item: pytest.Item, traits: Set[str], image: str, provides: Callable[[str], bool]
) -> str | None:
    """Return why a test does not apply to a platform; None if it does. `provides`: whether the
    image has a program.
    """
    for marker in item.iter_markers():
        match marker.name:
            case "needs_python" if not provides("python3"):
                return str(marker.args[0])
            case "needs_program":
                for name in marker.args:
                    if not provides(name):
                        return f"the {image} image has no {name}"
            case "only_on" if not traits & set(marker.args):
                return str(marker.kwargs["reason"])
            case "not_on" if traits & set(marker.args):
                return str(marker.kwargs["reason"])
            case "root" if os.geteuid() != 0:
                return "an ordinary user has no cgroups and no id range"
    return None
