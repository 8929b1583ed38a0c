"""The entry point of `sandkasten`: parses, runs one command, and tells failures in one shape.

Exit status: 0, or the status of what ran inside; 124 when its time ran out; 125 for an error
of ours; 126 and 127 when the program could not be executed or was not found; 128 + N when
signal N ended it; 130 for Ctrl-C; 2 for a command line that makes no sense; 1 from `doctor`
when something required is missing.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    from sandkasten.cli.state import EXIT_OURS, State
    from sandkasten.errors import CommandNotExecutable, CommandNotFound, SandkastenError
    from sandkasten.model.optional_extras import install_command

    try:
        from sandkasten.cli.command_table import build
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] == "sandkasten":
            raise
        sys.stderr.write(
            f"error: the command line is not installed (no module named {exc.name})\n"
            f"hint: {install_command('server')}\n"
        )
        raise SystemExit(EXIT_OURS) from None

    state = State()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        build()(args=words, prog_name="sandkasten", obj=state)
    except SandkastenError as exc:
        from sandkasten.cli.output import report
        from sandkasten.cli.state import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND

        report(exc, as_json=state.json)
        status = EXIT_OURS
        if isinstance(exc, CommandNotFound):
            status = EXIT_NOT_FOUND
        elif isinstance(exc, CommandNotExecutable):
            status = EXIT_NOT_EXECUTABLE
        raise SystemExit(status) from None
    except BrokenPipeError:
        _discard_stdout()
        raise SystemExit(EXIT_OURS) from None


def _discard_stdout() -> None:
    """The reader has left; what is still buffered must not raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
