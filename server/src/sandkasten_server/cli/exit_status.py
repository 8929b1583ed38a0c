"""The exit status of every command: that of the program inside, or our own."""

from __future__ import annotations

from typing import Final

from sandkasten.errors import InvalidRequest

EXIT_NOT_READY: Final = 1
EXIT_USAGE: Final = 2
EXIT_TIMED_OUT: Final = 124
EXIT_OURS: Final = 125
EXIT_NOT_EXECUTABLE: Final = 126
EXIT_NOT_FOUND: Final = 127
EXIT_SIGNAL_BASE: Final = 128
EXIT_INTERRUPTED: Final = 130


class UsageError(InvalidRequest):
    """The command line itself is invalid: the exit status is EXIT_USAGE."""


def status_of(exit_code: int | None, signal: int | None, *, timed_out: bool) -> int:
    """Return the exit status for how a command inside a sandbox ended."""
    if timed_out:
        return EXIT_TIMED_OUT
    if exit_code is not None:
        return exit_code
    return EXIT_OURS if signal is None else EXIT_SIGNAL_BASE + signal
