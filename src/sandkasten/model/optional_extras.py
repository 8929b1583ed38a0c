"""The name and version of the distribution, and how to install its optional extras.

The distribution is not called `sandkasten` like its import and its command: the package of that
name in the public index belongs to another project, so no hint may say to install it.
"""

from __future__ import annotations

DISTRIBUTION = "sandkasten-runtime"
VERSION = "0.1.0"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to the installed version."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
