"""The commands that the plugin adds to the command line."""

from __future__ import annotations

import typer

from sandkasten_docker.command_plugin import PLUGIN
from sandkasten_docker.daemon_container.up_down import add_to, modes, workspace_modes
from sandkasten_server.cli.command_plugins import command_plugins
from sandkasten_server.cli.completions import parameters
from sandkasten_server.cli.state import State


def test_the_installed_plugin_adds_up_and_down():
    assert {"up", "down"} <= command_plugins().top().keys()
    assert [line for line in command_plugins().problems if "docker" in line] == []


async def test_options_with_a_choice_are_completed():
    app = typer.Typer()
    add_to(app)
    options = {
        f"{command.name} {parameter.name}"
        for command in app.registered_commands
        for parameter in parameters(command.callback)
    }
    assert PLUGIN.completions.keys() <= options
    context = typer.Context(typer.main.get_command(app))
    assert list(await modes(State(), context)) == ["docker_socket", "sidecar", "remote"]
    assert "shared" in await workspace_modes(State(), context)
