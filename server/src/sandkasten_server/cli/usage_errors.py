"""Invalid command lines: what was wrong, and what to type instead, in the format of all errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from sandkasten.model.spelling import nearest, shown
from sandkasten_server.cli.exit_status import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_PROGRAM: Final = "sandkasten"
# More options than this are not listed in a hint.
_MAX_LISTED: Final = 12
# Options of a sandbox by names that other programs give them.
_OTHER_NAMES: Final = {
    "--cpus": "--limit cpu_limit=N",
    "--memory": "--limit mem_limit_mb=N",
    "--name": "--label name=NAME",
    "--publish": "sandkasten forward ID PORT",
    "--volume": "--workspace NAME (or --mount NAME, for a mount of the operator)",
}
_ON_STDIN: Final = "a value is read from stdin, or from a variable with --env NAME"


def translated(error: Exception, command: str | None, before: Collection[str]) -> UsageError | None:
    """Return the error for one of the parser; None for any other, and for the help of a group.

    `command` is the first word that is not an option, and `before` the options that go before it.
    """
    import typer

    # Its base, which typer does not export, is that of all errors about a command line.
    if not isinstance(error, typer.BadParameter.__mro__[1]):
        return None
    if type(error).__name__ == "NoArgsIsHelpError":
        return None
    context: Any = getattr(error, "ctx", None)
    # An option without its value is reported without the context.
    path = (command or "") if context is None else _path(context)
    if context is not None and hasattr(error, "possibilities"):  # An unknown option.
        option = error.option_name  # type: ignore[attr-defined]
        if path == "secret set" and option == "--value":
            return UsageError("secret set has no option '--value'", hint=_ON_STDIN)
        if not path and command is not None and option not in before:
            hint = _after(command, option)
            if hint:
                return UsageError(f"{option} is not an option of all commands", hint=hint)
        return no_option(path, option, option_names(context.command), before=before)
    message = error.format_message().removeprefix("Invalid value: ").rstrip(".")  # type: ignore[attr-defined]
    return UsageError(message[:1].lower() + message[1:], hint=f"see {_help(path)}")


def option_names(command: Any) -> Mapping[str, str]:
    """Return the names of a command's options, such as --file and -f, with what their value is."""
    return {
        name: parameter.metavar or ""
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }


def no_option(
    command: str,
    word: str,
    options: Mapping[str, str],
    more: str = "",
    *,
    before: Collection[str] = (),
) -> UsageError:
    """Return the error for an option that a command does not have, with what to type instead.

    `command` is empty for the options before a command.
    """
    option = word.partition("=")[0]
    if option in before and command:
        hint = f"it goes before the command: {_PROGRAM} {option} … {command}"
    else:
        instead = _instead(option, options)
        hint = f"did you mean {instead}?" if instead else f"{_listed(options)}see {_help(command)}"
        if more:
            hint += f" {more}" if instead else f"; {more}"
    return UsageError(f"{command or _PROGRAM} has no option {shown(option)}", hint=hint)


def no_command(group: str, word: str, commands: Collection[str], all_: Iterable[str]) -> UsageError:
    """Return the error for a command that does not exist, with the nearest one.

    `group` is empty for the first word; `all_` are all commands, such as `image pull`.
    """
    near = nearest(word, commands)
    names = [f"{group} {near}".strip()] if near else [
        command for command in all_ if command.split()[-1] == word
    ]  # fmt: skip
    if names:
        hint = f"did you mean {_PROGRAM} {f' or {_PROGRAM} '.join(names)}?"
    else:
        hint = f"{_listed(commands)}see {_help(group)}"
    return UsageError(f"{f'{_PROGRAM} {group}'.strip()} has no command {shown(word)}", hint=hint)


def _instead(option: str, options: Mapping[str, str]) -> str | None:
    """Return the option that was probably meant, with a value if its name does not suffice."""
    from sandkasten.model.sandbox.limit_names import LIMIT_NAMES
    from sandkasten_server.cli.options import KEYWORDS

    # Without the dashes, which would make all options alike.
    name = option.lstrip("-")
    if len(name) < 2:
        return None
    limited = {"--image", "--limit"} <= options.keys()  # The command makes a sandbox.
    if limited and option in _OTHER_NAMES:
        return _OTHER_NAMES[option]
    # Every command has --help, which is not one of its parameters.
    near = nearest(name, ["help", *(other[2:] for other in options if other.startswith("--"))])
    if near is not None:
        return f"--{near}"
    keyword = name.replace("-", "_")
    if KEYWORDS.get(keyword) in options:
        return KEYWORDS[keyword]
    limit = nearest(keyword, LIMIT_NAMES) if limited else None
    if limit is not None:
        return f"--limit {limit}=N"
    # `--port` for an option that takes HOST:PORT.
    values = (
        f"{other} {value}"
        for other, value in options.items()
        if name.upper() in re.split(r"\W+", value)
    )
    return next(values, None)


def _listed(candidates: Collection[str]) -> str:
    """Return the names for a hint if they are few; an option by its long name."""
    names = sorted(name for name in candidates if name[1:2] == "-" or name[:1] != "-")
    return f"known: {', '.join(names)}; " if 0 < len(names) <= _MAX_LISTED else ""


def _after(command: str, option: str) -> str:
    """Return the hint for an option before the command that belongs after it."""
    from sandkasten_server.cli.command_table import described

    description = described(command)
    if description is None or option not in option_names(description):
        return ""
    return f"it goes after the command: {_PROGRAM} {command} {option}"


def _path(context: Any) -> str:
    """Return the command of a context without the program: `image build`."""
    return str(context.command_path).removeprefix(_PROGRAM).strip()


def _help(command: str) -> str:
    return f"{_PROGRAM} {command} --help" if command else f"{_PROGRAM} --help"
