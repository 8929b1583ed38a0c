"""The entry point of the command line in Python, present with every installation.

The commands are in the server, another distribution. Without it, `main` prints the command that
installs it and ends with status 125, as for every error of Sandkasten itself.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn

# As in `sandkasten_server.cli.exit_status`, which may be missing.
_EXIT_OURS = 125


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    import sandkasten

    if sandkasten.__file__ is None:
        _incomplete(sandkasten.__path__)
    try:
        from sandkasten_server.cli.main import main as run
    except ModuleNotFoundError as exc:
        if exc.name != "sandkasten_server":
            raise
        from sandkasten.model.optional_extras import install_command

        sys.stderr.write(
            f"error: the command line is not installed\nhint: {install_command('server')}\n"
        )
        raise SystemExit(_EXIT_OURS) from None
    run(arguments)


def _incomplete(path: Iterable[str]) -> NoReturn:
    """Report a missing `__init__.py`: Python then takes the directory for a namespace package."""
    from sandkasten.model.optional_extras import CLIENT_DISTRIBUTION

    missing = os.path.join(*path, "__init__.py")
    sys.stderr.write(
        f"error: the installation of {CLIENT_DISTRIBUTION} is incomplete: {missing} is missing\n"
        f"hint: pip install --force-reinstall --no-deps {CLIENT_DISTRIBUTION}\n"
    )
    raise SystemExit(_EXIT_OURS)
