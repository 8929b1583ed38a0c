"""Commands as a plugin: one value that can be imported without the code behind the commands.

Entry points of the group `sandkasten.commands` name them. A command has one owner: if two plugins,
or a plugin and the core, have it, no plugin adds it, and `sandkasten doctor` reports that. A
command of a plugin that is not installed is refused with the command that installs it
(`model/optional_extras.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import COMMAND_EXTRAS, install_command
from sandkasten.plugins.installed import installed, problem_of
from sandkasten.plugins.plugin_failure import REMEDY, described, is_failure, is_its_own, summary
from sandkasten.ports.plugin_interface import INTERFACE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sandkasten.plugins.installed import Installed

COMMANDS_GROUP: Final = "sandkasten.commands"
_PLUGINS: Final = {"mcp": "tools"}
"""The plugins of commands whose plugin does not have the name of its extra."""


@dataclass(frozen=True, slots=True)
class PluginCommand:
    section: str
    """Its title in `sandkasten --help`; empty for a command of a group of the core."""
    add: str
    """`module:function`. The function gets the application, or the group of the core, and adds the
    command. One function may add several commands.
    """


@dataclass(frozen=True, slots=True)
class CommandPlugin:
    name: str
    commands: Mapping[str, PluginCommand]
    """By their names: a word (`agent`), or one below a group of the core (`image build`)."""
    completions: Mapping[str, str] = field(default_factory=dict)
    """What completes values, by the keys of `completions.TABLE`: `module:function`. The function
    gets the state and the context of the parser, and returns all words.
    """
    interface: int = INTERFACE
    """The version of the plugin interface that it was written for."""


@dataclass(frozen=True, slots=True)
class PluginCommands:
    commands: Mapping[str, PluginCommand]
    completions: Mapping[str, str]
    problems: tuple[str, ...]
    """One sentence for each plugin or command that cannot be used."""

    def below(self, group: str) -> dict[str, PluginCommand]:
        """Return the commands of plugins in a group of the core, each by its own name."""
        return {
            name.partition(" ")[2]: command
            for name, command in self.commands.items()
            if name.partition(" ")[0] == group and " " in name
        }

    def top(self) -> dict[str, PluginCommand]:
        """Return the commands of plugins that are in no group of the core."""
        return {name: command for name, command in self.commands.items() if " " not in name}


def joined(
    plugins: Sequence[CommandPlugin], core: Collection[str], problems: Sequence[str] = ()
) -> PluginCommands:
    """Return the commands of plugins that have one owner. `core`: the commands of the core."""
    groups = {name.partition(" ")[0] for name in core}
    owners = Counter(name for plugin in plugins for name in plugin.commands)
    commands: dict[str, PluginCommand] = {}
    completions: dict[str, str] = {}
    all_problems = list(problems)
    for plugin in plugins:
        completions.update(plugin.completions)
        for name, command in plugin.commands.items():
            if name in core:
                reason = "the core has a command of this name"
            elif owners[name] > 1:
                reason = "another plugin has a command of this name"
            elif " " in name and name.partition(" ")[0] not in groups:
                reason = f"the core has no group {name.partition(' ')[0]}"
            else:
                commands[name] = command
                continue
            all_problems.append(
                f"{COMMANDS_GROUP}: the command {name} of the "
                f"{described(COMMANDS_GROUP, plugin.name)} is not used: {reason}"
            )
    return PluginCommands(commands, completions, tuple(all_problems))


@cache
def _installed() -> Installed[CommandPlugin]:
    return installed(COMMANDS_GROUP, CommandPlugin)


@cache
def command_plugins() -> PluginCommands:
    """Return the commands of the plugins that are installed."""
    from sandkasten_server.cli.command_table import core_names

    return joined(_installed().plugins, core_names(), _installed().problems)


def command_problems() -> tuple[str, ...]:
    """Return one sentence for each plugin or command that cannot be used, also below groups. Adds
    each to an application that is not used.
    """
    import typer

    from sandkasten_server.cli.command_table import core_commands

    plugins = joined(_installed().plugins, core_commands(), _installed().problems)
    problems = list(plugins.problems)
    for name, command in plugins.commands.items():
        try:
            add(command.add, typer.Typer())
        except UnsupportedByBackend as exc:
            problems.append(f"{COMMANDS_GROUP}: the command {name} is not used: {exc.message}")
    return tuple(problems)


def loaded(target: str) -> Any:
    """Return the function that `module:function` names; UnsupportedByBackend if it has none."""
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except BaseException as exc:
        if not is_failure(exc):
            raise
        raise unusable(target, "imported", exc) from exc


def add(target: str, app: Any) -> None:
    """Add a command to an application or group. Raise UnsupportedByBackend if that fails."""
    function = loaded(target)
    try:
        function(app)
    except BaseException as exc:
        if not is_its_own(exc):
            raise
        raise unusable(target, "added", exc) from exc


def unusable(target: str, what: str, exc: BaseException) -> UnsupportedByBackend:
    """Return the error for a function of a plugin that raised an exception."""
    owners = [
        described(COMMANDS_GROUP, plugin.name)
        for plugin in _installed().plugins
        if target in (command.add for command in plugin.commands.values())
        or target in plugin.completions.values()
    ]
    owner = f"the {owners[0]}" if owners else "a plugin"
    return UnsupportedByBackend(
        f"{target} of {owner} cannot be {what}: {summary(exc)}", hint=REMEDY
    )


def not_installed(group: str, word: str) -> UnsupportedByBackend | None:
    """Return the error for a command of a plugin that is not installed or cannot be used; None for
    any other. `group` is empty for the first word.
    """
    name = f"{group} {word}".strip()
    extra = COMMAND_EXTRAS.get(name)
    if extra is None:
        return None
    problems = command_plugins().problems
    clashes = (problem for problem in problems if f"the command {name} of the " in problem)
    problem = next(clashes, None) or problem_of(_PLUGINS.get(name, extra), problems)
    if problem is not None:
        return UnsupportedByBackend(f"sandkasten {name}: {problem}", hint=REMEDY)
    return UnsupportedByBackend(
        f"sandkasten {name}: the extra {extra}, which provides it, is not installed",
        hint=install_command(extra),
    )
