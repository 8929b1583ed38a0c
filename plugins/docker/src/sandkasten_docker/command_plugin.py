"""The commands `up` and `down`, as a plugin of the command line."""

from __future__ import annotations

from typing import Final

from sandkasten_server.cli.command_plugins import CommandPlugin, PluginCommand

_MODULE: Final = "sandkasten_docker.daemon_container.up_down"
_COMMANDS: Final = PluginCommand("Daemon and machine", f"{_MODULE}:add_to")
PLUGIN: Final = CommandPlugin(
    "docker",
    {"up": _COMMANDS, "down": _COMMANDS},
    {"up --mode": f"{_MODULE}:modes", "up --workspace": f"{_MODULE}:workspace_modes"},
)
