"""Parse the options of frequent commands without the library that parses all of them.

That library and its description of a command take longer to import than the command takes to run.
`parse` knows only options that are written in full. It returns None for anything else (help,
`-xVALUE`, an option that is not listed here), and the full parser then parses the whole line. It
checks no values and raises nothing. A test compares these tables with the declarations in
`command_table` and `options`.
"""

from __future__ import annotations

# Not from typing, which takes longer to import than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Values = dict[str, str | bool | list[str]]

ONE, MANY, SWITCH = "one", "many", "switch"

GLOBAL = {
    "--data-dir": ("data_dir", ONE),
    "--backend": ("backend", ONE),
    "--url": ("url", ONE),
    "--api-key": ("api_key", ONE),
    "--embedded": ("embedded", SWITCH),
}
_JSON = {"--json": ("json", SWITCH)}
COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "version": _JSON,
    # Not --json, --all-tenants: the full command shows what they add.
    "ls": {
        "--all": ("all_", SWITCH),
        "--quiet": ("quiet", SWITCH),
        "-q": ("quiet", SWITCH),
    },
    # Without a terminal, input and another user.
    "exec": {
        "--timeout": ("timeout", ONE),
        "--cwd": ("cwd", ONE),
        "-w": ("cwd", ONE),
        "--env": ("env", MANY),
        "-e": ("env", MANY),
        "--shell": ("shell", ONE),
        **_JSON,
    },
    "run": {
        "-c": ("code", ONE),
        "--runtime": ("runtime", ONE),
        "-r": ("runtime", ONE),
        "--timeout": ("timeout", ONE),
        "--file": ("file", MANY),
        "-f": ("file", MANY),
        "--artifact": ("artifact", MANY),
        "-a": ("artifact", MANY),
        "--out": ("out", ONE),
        "-o": ("out", ONE),
        "--stdin": ("stdin", SWITCH),
        "--backend": ("backend", ONE),
        "--image": ("image", ONE),
        "-i": ("image", ONE),
        "--env": ("env", MANY),
        "-e": ("env", MANY),
        "--hostname": ("hostname", ONE),
        "--isolation": ("isolation", ONE),
        "--workspace": ("workspace", ONE),
        "--mount": ("mount", MANY),
        "--pip": ("pip", MANY),
        "--npm": ("npm", MANY),
        **_JSON,
    },
}


class Parsed:
    """A command line in parts; `words` are those after the options."""

    __slots__ = ("before", "command", "options", "words")

    def __init__(self, command: str, before: Values, options: Values, words: Sequence[str]) -> None:
        self.command = command
        self.before = before
        self.options = options
        self.words = words


def parse(line: Sequence[str]) -> Parsed | None:
    """Return the parts of a command line; None if the full parser has to look at it."""
    head = options_before(line, GLOBAL)
    if head is None:
        return None
    before, rest = head
    table = COMMANDS.get(rest[0]) if rest else None
    tail = None if table is None else options_before(rest[1:], table)
    return None if tail is None else Parsed(rest[0], before, *tail)


def options_before(
    line: Sequence[str], table: Mapping[str, tuple[str, str]]
) -> tuple[Values, Sequence[str]] | None:
    """Return the options at the beginning, and the words after them."""
    values: Values = {}
    at = 0
    while at < len(line):
        word = line[at]
        if word == "-" or not word.startswith("-"):
            break
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        field, kind = table.get(name, ("", ""))
        at += 1
        if kind == SWITCH and not equals:
            values[field] = True
        elif kind in (ONE, MANY):
            if not equals:
                if at == len(line):
                    return None
                value, at = line[at], at + 1
            if kind == ONE:
                values[field] = value
            else:
                several = values.setdefault(field, [])
                assert isinstance(several, list)
                several.append(value)
        else:
            return None
    return values, line[at:]
