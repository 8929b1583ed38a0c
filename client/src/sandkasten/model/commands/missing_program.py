"""The error for a program that the sandbox does not have, with what to type instead. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sandkasten.errors import CommandNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

# Words of bash that are no programs, or have an effect only in the shell itself.
_SHELL_WORDS: Final = frozenset(
    (
        *("!", ".", ":", "[[", "alias", "bg", "bind", "builtin", "caller", "case", "cd", "command"),
        *("complete", "compgen", "compopt", "declare", "dirs", "disown", "enable", "eval", "exec"),
        *("exit", "export", "fc", "fg", "for", "function", "getopts", "hash", "help", "history"),
        *("if", "jobs", "let", "local", "logout", "mapfile", "popd", "pushd", "read", "readarray"),
        *("readonly", "return", "select", "set", "shift", "shopt", "source", "suspend", "time"),
        *("times", "trap", "type", "typeset", "ulimit", "umask", "unalias", "unset", "until"),
        *("wait", "while", "{", "(", "((", "&&", "||", "|", ";"),
    )
)
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
# What only a shell replaces or acts upon; a name with one of them is hardly that of a program.
_SHELL_SYNTAX: Final = re.compile(r"[\s|&;<>()$`*?\"'\\]|^~")
_CHECK_NAME: Final = "check the name and the image's PATH"
_CHECK_PATH: Final = "check the path, and for a script the interpreter in its first line"
_MAX_SHOWN: Final = 80


def missing_program(error: CommandNotFound, argv: Sequence[str] | None) -> CommandNotFound:
    """Return the error with the hint for these arguments; None are those of a shell."""
    if argv is None:
        return error
    return CommandNotFound(error.message, hint=missing_program_hint(argv), **error.details)


def missing_program_hint(argv: Sequence[str]) -> str:
    """Return what to do about `argv[0]`, which is not a program of the sandbox."""
    name = argv[0]
    if name in _SHELL_WORDS:
        what = f"{name} is a word of the shell"
    elif _ASSIGNMENT.match(name):
        what = "only a shell sets variables this way"
    elif _SHELL_SYNTAX.search(name):
        what = "a list is a program and its arguments, and no shell reads it"
    elif "/" in name:
        return _CHECK_PATH
    else:
        return _CHECK_NAME
    # Arguments with spaces would need quotes; the first is what was not split.
    spaced = any(" " in word for word in argv[1:])
    line = " ".join(argv)
    if spaced or len(line) > _MAX_SHOWN or not line.isprintable() or "'" in line:
        return f"{what}: give the whole command as one string, or run sh -c"
    return f"{what}: give the command as one string, '{line}', or run sh -c"
