"""The settings of agents as a plugin: their runs, their models and the providers of these."""

from __future__ import annotations

from typing import Final

from sandkasten.ports.settings_plugins import SettingsPlugin
from sandkasten_agents.agent_settings import AgentSettings
from sandkasten_agents.provider_settings import ProviderSettings

PLUGIN: Final = SettingsPlugin(
    "agents",
    ("agents", "workflows", "models", "retention.runs_seconds"),
    (AgentSettings, ProviderSettings),
)
