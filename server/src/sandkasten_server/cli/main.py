"""The entry point of `sandkasten`: parse, run one command, report failures in one format.

Exit status: 0, or the status of the command inside; 124 if it timed out; 125 for an error of
sandkasten itself; 126 and 127 if the program could not be executed or was not found; 128 + N if
signal N ended it; 130 for Ctrl-C; 2 for an invalid command line; 1 from `doctor` if something
required is missing.
"""

from __future__ import annotations

import gc
import os
import sys

# Not from typing, which takes longer to import than a short command takes to run.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandkasten.errors import SandkastenError
    from sandkasten_server.cli.state import State


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None:
        # The next file or connection would get its number, and what is printed there.
        os.write(2, b"error: stdout is closed\nhint: redirect it, for example to /dev/null\n")
        raise SystemExit(125)
    # Most commands end before garbage is worth collecting, and visiting all imported objects takes
    # a sixth of the time of a command.
    gc.set_threshold(50_000)
    from sandkasten.errors import SandkastenError
    from sandkasten.model.optional_extras import install_command
    from sandkasten_server.cli.exit_status import EXIT_OURS, UsageError
    from sandkasten_server.cli.state import State

    try:
        from sandkasten_server.cli.command_table import build, command_in
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.startswith("sandkasten"):
            raise
        sys.stderr.write(
            f"error: the command line is not installed (no module named {exc.name})\n"
            f"hint: {install_command('server')}\n"
        )
        raise SystemExit(EXIT_OURS) from None

    state = State()
    try:
        try:
            build(_command(words, command_in))(args=words, prog_name="sandkasten", obj=state)
        finally:
            sys.stdout.flush()
    except SandkastenError as exc:
        if isinstance(exc, UsageError) and command_in(words) not in ("exec", "run"):
            # The parser may have stopped before --json, which theirs may also pass on.
            state.json = state.json or "--json" in words
        raise SystemExit(report(exc, state)) from None
    except OSError as exc:
        raise SystemExit(_unwritten(exc)) from None


def report(error: SandkastenError, state: State) -> int:
    """Print an error in the format of every command and return the exit status."""
    from sandkasten.errors import CommandNotExecutable, CommandNotFound
    from sandkasten_server.cli import output
    from sandkasten_server.cli.exit_status import (
        EXIT_NOT_EXECUTABLE,
        EXIT_NOT_FOUND,
        EXIT_OURS,
        EXIT_USAGE,
        UsageError,
    )

    output.report(state.with_daemon(error), as_json=state.json)
    if isinstance(error, CommandNotFound):
        return EXIT_NOT_FOUND
    if isinstance(error, CommandNotExecutable):
        return EXIT_NOT_EXECUTABLE
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_OURS


def _unwritten(exc: OSError) -> int:
    """Return the exit status for output that cannot be written; raise any other error again."""
    from sandkasten_server.cli.exit_status import EXIT_OURS

    if isinstance(exc, BrokenPipeError):
        _discard_stdout()
        return EXIT_OURS
    from sandkasten.disk.os_errors import is_full
    from sandkasten.errors import QuotaExceeded
    from sandkasten_server.cli import output

    if not is_full(exc):
        raise exc
    _discard_stdout()
    place = exc.filename or "the output"
    message = f"could not write {place}: {exc.strerror}"
    # On stderr with --json too: stdout is what may be full.
    error = QuotaExceeded(message, hint="free space on that disk and try again")
    output.report(error, as_json=False)
    return EXIT_OURS


def _command(words: Sequence[str], command_in: Callable[[Sequence[str]], str | None]) -> str | None:
    """Return the command to describe to the parser; None for all of them."""
    if "_SANDKASTEN_COMPLETE" not in os.environ:
        return command_in(words)
    # The shell asks for a completion: the last word is being typed.
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return command_in(typed.split()[1:]) if typed[-1:].isspace() or len(typed.split()) > 2 else None


def _discard_stdout() -> None:
    """Discard buffered output: the reader has left, and flushing at exit would raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
