"""The command `mcp`, as a plugin of the command line."""

from __future__ import annotations

from typing import Final

from sandkasten_server.cli.command_plugins import CommandPlugin, PluginCommand

PLUGIN: Final = CommandPlugin(
    "tools", {"mcp": PluginCommand("Agents", "sandkasten_tools.mcp.mcp_command:add_to")}
)
