"""The exit status of every command: that of the program inside, or one of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def no_option(command: str, word: str, known: Iterable[str], more: str = "") -> UsageError:
    """Return the error for an option that a command does not have, with the nearest it has."""
    from sandkasten.model.spelling import nearest, shown

    option = word.partition("=")[0]
    near = nearest(option, known)
    hint = f"did you mean {near}?" if near else f"see sandkasten {command} --help"
    if more:
        hint += f" {more}" if near else f"; {more}"
    return UsageError(f"{command} has no option {shown(option)}", hint=hint)


def status_of(exit_code: int | None, signal: int | None, *, timed_out: bool) -> int:
    """Return the exit status for how a command inside a sandbox ended."""
    if timed_out:
        return EXIT_TIMED_OUT
    if exit_code is not None:
        return exit_code
    return EXIT_OURS if signal is None else EXIT_SIGNAL_BASE + signal
