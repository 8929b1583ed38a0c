"""How to install an optional extra.

Sandkasten is installed from its wheel. The package of the same name in the public index is another
project's, so no hint may say to install `sandkasten` by name.
"""

from __future__ import annotations


def install_command(extra: str) -> str:
    """Return the command that adds an extra, run beside the wheel."""
    return f'pip install "$(echo ./sandkasten-*.whl)[{extra}]", beside the wheel of this version'
