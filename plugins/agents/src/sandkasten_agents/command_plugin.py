"""The commands `agent` and `workflow`, as a plugin of the command line."""

from __future__ import annotations

from typing import Final

from sandkasten_server.cli.command_plugins import CommandPlugin, PluginCommand

_WORDS: Final = "sandkasten_agents.commands.run_output"
PLUGIN: Final = CommandPlugin(
    "agents",
    {
        "agent": PluginCommand("Agents", "sandkasten_agents.commands.agents:add_to"),
        "workflow": PluginCommand("Agents", "sandkasten_agents.commands.workflows:add_to"),
    },
    {
        "--status": f"{_WORDS}:run_statuses",
        "AGENT": f"{_WORDS}:agent_names",
        "RUN": f"{_WORDS}:run_ids",
        "WORKFLOW": f"{_WORDS}:workflow_names",
    },
)
