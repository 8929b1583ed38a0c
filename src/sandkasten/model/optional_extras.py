"""The name and version of the distribution, and how to install its optional extras.

The distribution is not called `sandkasten` like its import and its command: the package of that
name in the public index belongs to another project, so no hint may say to install it.
"""

from __future__ import annotations

from typing import Final

DISTRIBUTION = "sandkasten-runtime"
VERSION = "0.1.0"
SECTION_EXTRAS: Final = {
    "backends.docker": "docker",
    "backends.kubernetes": "kubernetes",
    "backends.dagger": "dagger",
    "backends.fly": "fly",
    "backends.e2b": "e2b",
    "backends.modal": "modal",
}
"""Sections of settings that plugins of this project declare, with the extra that has the plugin."""


def install_command(extra: str) -> str:
    """Return the command that adds an extra to the installed version."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
