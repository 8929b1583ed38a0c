"""The command `image build`, as a plugin of the command line."""

from __future__ import annotations

from typing import Final

from sandkasten_server.cli.command_plugins import CommandPlugin, PluginCommand

_MODULE: Final = "sandkasten_build.image_build"
PLUGIN: Final = CommandPlugin(
    "build",
    {"image build": PluginCommand("", f"{_MODULE}:add_to")},
    {"image CONTEXT|NAME": f"{_MODULE}:known_names"},
)
