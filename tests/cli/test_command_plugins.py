"""Commands of plugins: those that are added, those that cannot be, and those not installed."""

from __future__ import annotations

import sys

import pytest
import typer

from sandkasten.model.optional_extras import COMMAND_EXTRAS, install_command
from sandkasten.plugins.plugin_failure import REMEDY
from sandkasten_server.cli import command_plugins, command_table
from sandkasten_server.cli.command_plugins import (
    CommandPlugin,
    PluginCommand,
    joined,
    not_installed,
)
from sandkasten_server.cli.main import main

CORE = ("exec", "image", "image ls")
HERE = __name__


def add_greet(app: typer.Typer) -> None:
    @app.command("greet")
    def greet() -> None:
        """Greet."""
        typer.echo("hello")


def _plugin(name: str, *commands: str) -> CommandPlugin:
    command = PluginCommand("Agents", f"{HERE}:add_greet")
    return CommandPlugin(name, dict.fromkeys(commands, command))


@pytest.fixture
def install(monkeypatch):
    """Return a function that makes these plugins the installed ones."""

    def install(*plugins: CommandPlugin) -> None:
        commands = joined(plugins, command_table.core_names())
        for module in (command_plugins, command_table):
            monkeypatch.setattr(module, "command_plugins", lambda: commands)
        for cached in (command_table._sections, command_table._table):
            cached.cache_clear()

    yield install
    for cached in (command_table._sections, command_table._table):
        cached.cache_clear()


def _run(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_commands_of_plugins_have_one_owner():
    first, second = _plugin("first", "greet", "image build"), _plugin("second", "part", "greet")
    joint = joined([first, second], CORE)
    assert set(joint.commands) == {"image build", "part"}
    assert (set(joint.top()), set(joint.below("image"))) == ({"part"}, {"build"})
    assert joint.problems == tuple(
        f"sandkasten.commands: the command greet of the plugin {name} is not used: "
        "another plugin has a command of this name"
        for name in ("first", "second")
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exec", "the core has a command of this name"),
        ("image ls", "the core has a command of this name"),
        ("exam ls", "the core has no group exam"),
    ],
)
def test_commands_of_the_core_stay_its_own(name, reason):
    joint = joined([_plugin("mine", name)], CORE)
    assert joint.commands == {}
    assert joint.problems == (
        f"sandkasten.commands: the command {name} of the plugin mine is not used: {reason}",
    )


def test_a_command_of_a_plugin_runs_and_is_in_its_section(install, capsys):
    install(_plugin("mine", "greet"))
    assert _run(capsys, "greet") == (0, "hello\n", "")
    assert "greet" in _run(capsys, "--help")[1].partition("Agents:")[2].partition(":")[0]


def test_a_command_below_a_group_of_the_core_runs(install, capsys):
    install(_plugin("mine", "workspace greet"))
    assert _run(capsys, "workspace", "greet") == (0, "hello\n", "")
    assert _run(capsys, "greet")[0] == 2


def test_a_command_that_cannot_be_imported_stops_no_other(install, capsys, monkeypatch):
    broken = CommandPlugin("broken", {"part": PluginCommand("Agents", "no_such_module:add")})
    install(broken, _plugin("mine", "greet"))
    status, _, err = _run(capsys, "part")
    assert status == 125
    assert err.startswith("error: no_such_module:add of a plugin cannot be imported: ")
    assert _run(capsys, "greet") == (0, "hello\n", "")
    assert _run(capsys, "--help")[0] == 0


@pytest.mark.parametrize("name", COMMAND_EXTRAS)
def test_a_command_that_is_not_installed_names_what_installs_it(install, capsys, name):
    install()
    status, out, err = _run(capsys, *name.split())
    assert (status, out) == (125, "")
    extra = COMMAND_EXTRAS[name]
    assert err == (
        f"error: sandkasten {name}: the extra {extra}, which provides it, is not installed\n"
        f"hint: {install_command(extra)}\n"
    )


@pytest.mark.parametrize("name", COMMAND_EXTRAS)
def test_a_plugin_that_cannot_be_used_is_not_reported_as_missing(monkeypatch, name):
    extra = COMMAND_EXTRAS[name]
    plugin = {"mcp": "tools"}.get(extra, extra)
    group, _, word = name.rpartition(" ")
    for problem in (
        f"sandkasten.commands: plugin {plugin} (x:PLUGIN) of the distribution x cannot be imported",
        f"sandkasten.commands: the command {name} of the plugin x is not used: another has it",
    ):
        broken = command_plugins.PluginCommands({}, {}, ("of another", problem))
        monkeypatch.setattr(command_plugins, "command_plugins", lambda broken=broken: broken)
        error = not_installed(group, word)
        assert error is not None
        assert (error.message, error.hint) == (f"sandkasten {name}: {problem}", REMEDY)


def test_a_command_of_no_plugin_is_unknown(install, capsys):
    install()
    assert not_installed("", "agnt") is None
    assert _run(capsys, "agnt")[0] == 2


def test_the_plugins_of_this_project_have_no_problems():
    assert command_plugins.command_problems() == ()
    assert set(COMMAND_EXTRAS) <= set(command_plugins.command_plugins().commands)
    for plugin in command_plugins._installed().plugins:
        for name in plugin.commands:
            assert command_plugins._PLUGINS.get(name, COMMAND_EXTRAS[name]) == plugin.name


def test_a_command_of_the_core_looks_for_no_plugin(monkeypatch):
    def never():
        raise AssertionError

    monkeypatch.setattr(command_table, "command_plugins", never)
    command_table.build("version")


def test_plugins_are_found_without_what_they_wrap():
    code = (
        "import sys; from sandkasten_server.cli.command_plugins import command_plugins; "
        "command_plugins(); "
        "print([name for name in sys.modules if name.startswith('sandkasten_agents.commands')])"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert done.stdout == b"[]\n"
